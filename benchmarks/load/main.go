// Load for benchmarks/router.py, compiled so that the generator costs little beside what it measures.
//
// "load serve" is a stub worker: it answers every request at once (a router gets a short event stream with journal
// lines, others what they ask for), and speaks /watch; a body with "burst" gets a stream that does not end.
// "load run" sends unary requests at a fixed rate, whatever the answers do (open loop), and counts latency from when each
// request was due, so that a stall is not hidden. "load mix" keeps many kinds of requests in flight, wrong ones and
// clients that leave too. "load idle" opens streams and reads nothing. All print one line of JSON.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const chunk = `data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m",` +
	`"choices":[{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":%s}]}` + "\n\n"

const end = "data: [DONE]\n\n"

const whole = `{"id":"chatcmpl-0","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,` +
	`"message":{"role":"assistant","content":" token token"},"logprobs":null,"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":3,"completion_tokens":9,"total_tokens":12}}`

// answer is one whole event stream of a stub worker.
func answer(tokens int, journal bool) []byte {
	var out bytes.Buffer
	line := func(text string) {
		if journal {
			out.WriteString(": bireme " + text + "\n")
		}
	}
	line(`{"kind":"opened","v":1,"prompt_token_ids":[1,2,3],"model_revision":"r"}`)
	fmt.Fprintf(&out, chunk, "", "null")
	for i := 0; i < tokens; i++ {
		line(`{"kind":"emitted","choice":0,"token_ids":[12345]}`)
		fmt.Fprintf(&out, chunk, " token", "null")
	}
	line(`{"kind":"emitted","choice":0,"token_ids":[2],"finish_reason":"stop"}`)
	fmt.Fprintf(&out, chunk, "", `"stop"`)
	out.WriteString(end)
	return out.Bytes()
}

func serve(tokens int, state string) error {
	plain, journalled, burst := answer(tokens, false), answer(tokens, true), answer(4000, true)
	http.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		start := string(body[:min(len(body), 200)])
		switch {
		case strings.Contains(start, "burst"):
			w.Header().Set("Content-Type", "text/event-stream")
			w.Write(burst[:len(burst)-len(end)])
			<-r.Context().Done()
		case r.Header.Get("X-Bireme-Journal") == "1":
			w.Header().Set("Content-Type", "text/event-stream")
			w.Write(journalled)
		case strings.Contains(start, `"stream":true`):
			w.Header().Set("Content-Type", "text/event-stream")
			w.Write(plain)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte(whole))
		}
	})
	http.HandleFunc("/watch", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			fmt.Fprintln(w, state)
			w.(http.Flusher).Flush()
			time.Sleep(500 * time.Millisecond)
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("{\"url\": \"http://%s\"}\n", listener.Addr())
	return http.Serve(listener, nil)
}

func run(url string, rate int, length time.Duration, body []byte) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}, Timeout: 10 * time.Second}
	var lock sync.Mutex
	var all sync.WaitGroup
	took, failed := []float64{}, 0
	due, interval := time.Now(), time.Second/time.Duration(rate)
	for end := due.Add(length); due.Before(end); due = due.Add(interval) {
		time.Sleep(time.Until(due))
		all.Add(1)
		go func(due time.Time) {
			defer all.Done()
			good := false
			if reply, err := client.Post(url, "application/json", bytes.NewReader(body)); err == nil {
				_, err = io.Copy(io.Discard, reply.Body)
				reply.Body.Close()
				good = err == nil && reply.StatusCode == 200
			}
			ms := float64(time.Since(due)) / float64(time.Millisecond)
			lock.Lock()
			defer lock.Unlock()
			if good {
				took = append(took, ms)
			} else {
				failed++
			}
		}(due)
	}
	all.Wait()
	sort.Float64s(took)
	at := func(share float64) float64 {
		if len(took) == 0 {
			return -1
		}
		return took[min(len(took)-1, int(share*float64(len(took))))]
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"requests": float64(len(took)), "failed": float64(failed), "p50_ms": at(0.5), "p99_ms": at(0.99),
	})
}

// mix keeps so many clients busy until so many requests are answered, one kind after another.
func mix(url string, requests, clients int) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients, DisableCompression: true}, Timeout: 30 * time.Second}
	ask := `{"model":"m","messages":[{"role":"user","content":"%d %s"}]%s}`
	filler := strings.Repeat("y", 600)
	var next, wrong atomic.Int64
	var all sync.WaitGroup
	for i := 0; i < clients; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := next.Add(1); n <= int64(requests); n = next.Add(1) {
				body, want, leave := fmt.Sprintf(ask, n, filler, ""), 200, false
				switch n % 8 {
				case 1, 2, 3:
					body = fmt.Sprintf(ask, n, filler, `,"stream":true`)
				case 4:
					body, want = "{", 400
				case 5:
					body, want = `{"model":"other"}`, 404
				case 6:
					body, leave = `{"burst":1,"model":"m","stream":true,"messages":[]}`, true
				}
				reply, err := client.Post(url, "application/json", strings.NewReader(body))
				if err != nil {
					wrong.Add(1)
					continue
				}
				if leave {
					io.ReadFull(reply.Body, make([]byte, 10))
				} else {
					io.Copy(io.Discard, reply.Body)
				}
				reply.Body.Close()
				if reply.StatusCode != want {
					wrong.Add(1)
				}
			}
		}()
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(map[string]int64{"wrong": wrong.Load()})
}

// idle opens streams that never end, says so, and reads nothing until its input is closed.
func idle(url string, streams int) error {
	address, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	body := `{"burst":1,"model":"m","stream":true,"messages":[]}`
	for i := 0; i < streams; i++ {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		defer connection.Close()
		connection.(*net.TCPConn).SetReadBuffer(4096)
		fmt.Fprintf(connection, "POST /%s HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s", path, len(body), body)
		if _, err := io.ReadFull(connection, make([]byte, 12)); err != nil {
			return err
		}
	}
	fmt.Printf("{\"open\": %d}\n", streams)
	io.Copy(io.Discard, os.Stdin)
	return nil
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "load serve | run | mix | idle: see -h of each")
		os.Exit(64)
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	tokens := flags.Int("tokens", 8, "tokens of each answer")
	state := flags.String("state", "{}", "state document that /watch repeats")
	url := flags.String("url", "", "where to post")
	rate := flags.Int("rate", 1000, "requests per second")
	length := flags.Duration("for", 5*time.Second, "how long")
	body := flags.String("body", "{}", "JSON body; %FILL% becomes --fill bytes")
	fill := flags.Int("fill", 0, "bytes to fill the body with")
	count := flags.Int("count", 1000, "requests of mix, streams of idle")
	clients := flags.Int("clients", 32, "clients of mix")
	flags.Parse(os.Args[2:])
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(*tokens, *state)
	case "mix":
		err = mix(*url, *count, *clients)
	case "idle":
		err = idle(*url, *count)
	default:
		filled := strings.ReplaceAll(*body, "%FILL%", strings.Repeat("z ", *fill/2))
		err = run(*url, *rate, *length, []byte(filled))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(70)
	}
}
