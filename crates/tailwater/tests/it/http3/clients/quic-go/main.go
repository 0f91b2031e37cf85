// Requests with quic-go. Argument: port of the server. The certificate of its authority is ca.crt, the content of /big is in big.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/quic-go/quic-go/http3"
)

func check(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func main() {
	authority, err := os.ReadFile("ca.crt")
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}}
	defer transport.Close()
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	do := func(method, path string, body []byte) (int, []byte) {
		request, err := http.NewRequest(method, "https://127.0.0.1:"+os.Args[1]+path, bytes.NewReader(body))
		check(err)
		request.Host = "localhost"
		response, err := client.Do(request)
		check(err)
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		check(err)
		return response.StatusCode, content
	}
	status, body := do("GET", "/protocol", nil)
	fmt.Println("/protocol", status, string(body))
	status, body = do("GET", "/big", nil)
	big, err := os.ReadFile("big")
	check(err)
	fmt.Println("/big", status, bytes.Equal(body, big))
	status, _ = do("GET", "/none", nil)
	fmt.Println("/none", status)
	status, body = do("POST", "/length", bytes.Repeat([]byte("x"), 300_000))
	fmt.Println("/length", status, string(body))
	var all sync.WaitGroup
	right := make([]bool, 50)
	for n := range right {
		all.Go(func() {
			_, body := do("GET", fmt.Sprintf("/n?n=%d", n), nil)
			right[n] = string(body) == fmt.Sprint(n)
		})
	}
	all.Wait()
	good := true
	for _, is := range right {
		good = good && is
	}
	fmt.Println("parallel", good)
}
