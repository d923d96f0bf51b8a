module bireme.dev/load

go 1.21
