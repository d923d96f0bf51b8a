// Load for benchmarks/router.py, compiled so that the generator costs little beside what it measures.
//
// "load serve" is a stub worker: it answers every request at once with a short event stream (with journal lines for a
// router), and speaks /watch. "load run" sends unary requests at a fixed rate, whatever the answers do (open loop), and
// counts latency from when each request was due, so that a stall is not hidden. Both print one line of JSON.
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
	"sync"
	"time"
)

const chunk = `data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m",` +
	`"choices":[{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":%s}]}` + "\n\n"

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
	out.WriteString("data: [DONE]\n\n")
	return out.Bytes()
}

func serve(tokens int, state string) error {
	plain, journalled := answer(tokens, false), answer(tokens, true)
	http.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		if r.Header.Get("X-Bireme-Journal") == "1" {
			w.Write(journalled)
		} else {
			w.Write(plain)
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

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "load serve | load run: see -h of each")
		os.Exit(64)
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	tokens := flags.Int("tokens", 8, "tokens of each answer")
	state := flags.String("state", "{}", "state document that /watch repeats")
	url := flags.String("url", "", "where to post")
	rate := flags.Int("rate", 1000, "requests per second")
	length := flags.Duration("for", 5*time.Second, "how long")
	body := flags.String("body", "{}", "JSON body")
	flags.Parse(os.Args[2:])
	var err error
	if os.Args[1] == "serve" {
		err = serve(*tokens, *state)
	} else {
		err = run(*url, *rate, *length, []byte(*body))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(70)
	}
}
