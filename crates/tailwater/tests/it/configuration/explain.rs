//! `-t --explain URL`: routing of a request, without sending it.

use tw_testkit::tls::Authority;

use crate::support::{get, server, start};

const HTTP: &str = "http {
server {
    listen 127.0.0.1:{port}; server_name example.com;
    rewrite ^/old/(.*)$ /new/$1 last;
    location / { try_files $uri =404; }
    location ^~ /new/ { client_max_body_size 10m; autoindex on; add_header X-Y z; access_log off; }
    location ~ \\.php$ { return 301 https://$host$uri; }
    location = /gone { return 410; error_page 410 /new/sorry.html; }
    location /if/ { if ($arg_x) { root other; } }
    location /not/ {
        limit_except POST { }
    }
    location /in/ { internal; }
}
server { listen 127.0.0.1:{port} default_server; return 404; }
}";

/// Standard output with each run of blanks as one, the outcome, and standard error.
fn explained(url: &str) -> (String, bool, String) {
    let output = server()
        .file("html/new/a", "content")
        .file("other/x", "")
        .arg("-q")
        .arg("--explain")
        .arg(url)
        .run(&HTTP.replace("{port}", "8399"))
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let text =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect();
    (text, output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn explain_names_the_protocols_of_an_address() {
    const HTTPS: &str = "http { ssl_certificate one.crt; ssl_certificate_key one.key;
        server { listen 127.0.0.1:8443 quic reuseport; listen 127.0.0.1:8443 ssl; http2 on; server_name example.com;
                 if ($scheme = http) { return 301 https://$host; } location / { return 200 $scheme; } }
        server { listen 127.0.0.1:8443 ssl; server_name old.example; return 204; }
        server { listen 127.0.0.1:8444 quic; server_name example.com; return 204; }
        server { listen 127.0.0.1:8445; listen 127.0.0.1:8445 quic; http3 off; return 204; } }";
    let made = Authority::new().certify(&["example.com"]);
    for (url, lines) in [
        (
            "https://example.com:8443/",
            &["listen 127.0.0.1:8443 (TLS: HTTP/2, HTTP/1.1; QUIC: HTTP/3) ", "location /"][..],
        ),
        (
            "example.com:8443/",
            &["listen 127.0.0.1:8443 (TLS: HTTP/2, HTTP/1.1; QUIC: HTTP/3) ", "location /"],
        ),
        ("https://old.example:8443/", &["listen 127.0.0.1:8443 (TLS: HTTP/1.1) ", "server old.example: "]),
        ("https://example.com:8444/", &["listen 127.0.0.1:8444 (QUIC: HTTP/3) ", "response 204"]),
        (
            "http://example.com:8443/",
            &["http:// is refused here with 400 (error_page 497); what follows is for https://"],
        ),
        (
            "https://example.com:8445/",
            &["listen 127.0.0.1:8445 ", "the address does not speak TLS; what follows is for http://"],
        ),
    ] {
        let run = server().certificate("one", &made).arg("-q").arg("--explain").arg(url).run(HTTPS).unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        let words: Vec<_> = text.split_whitespace().collect();
        let text = words.join(" ");
        assert!(lines.iter().all(|line| text.contains(line)), "{url}: {text}");
    }
}

#[test]
fn explain_shows_rewrites_and_locations() {
    for (url, lines) in [
        (
            "http://example.com:8399/old/a",
            &[
                "listen 127.0.0.1:8399 ",
                "server example.com: server_name is \"example.com\" ",
                "rewrite /old/a becomes /new/a (module rewrite)",
                "location ^~ /new/: the longest prefix; with ^~, regular expressions are not tried ",
                "uri /new/a",
                "html/new/a (7 bytes)",
                "content index, autoindex, static",
                "filters headers",
                "limits client_max_body_size 10m, client_header_timeout 60s",
            ][..],
        ),
        (
            "http://example.com:8399/x.php?y",
            &[
                "location ~ \\.php$: the first regular expression that matches; it comes before the prefix / ",
                "answer 301, by module rewrite in the rewrite phase",
                "response 301, to https://example.com/x.php",
            ],
        ),
        (
            "http://example.com:8399/gone",
            &[
                "answer 410, by module rewrite",
                "error_page 410 goes on as /new/sorry.html (was /gone)",
                "location ^~ /new/",
            ],
        ),
        (
            "http://example.com:8399/if/a?x=1",
            &["if the condition holds", "other/if/a (2: No such file or directory)"],
        ),
        ("http://example.com:8399/if/a", &["html/if/a (2: No such file or directory)"]),
        (
            "http://example.com:8399/in/",
            &["location /in/", "internal: requests of clients get 404", "response 404"],
        ),
        (
            "http://example.com:8399/not/",
            &[
                "location /not/: ",
                "limit_except GET is none of its methods: the settings in its block are used ",
            ],
        ),
        ("POST http://example.com:8399/not/", &["location /not/: ", "uri /not/"]),
        ("http://example.com:8399/q", &["precontent try_files", "log log"]),
        (
            "http://x:8399/",
            &[
                "server without a name: no server_name fits \"x\"",
                "answer 404, by module rewrite in the server_rewrite phase",
            ],
        ),
    ] {
        let (text, success, err) = explained(url);
        assert!(success && err.is_empty(), "{url}: {err}");
        let mut rest = &*text;
        for line in lines {
            let at = rest
                .find(line)
                .unwrap_or_else(|| panic!("{url}: {line} is not there, or not there yet, in\n{text}"));
            rest = &rest[at + line.len()..];
        }
    }
}

#[test]
fn explain_shows_upstream_servers() {
    let conf = "http {
upstream app { server 127.0.0.1:1; }
server {
    listen 127.0.0.1:8399;
    location /plain/ { proxy_pass http://app/base/; }
    location /named { set $to 127.0.0.1:2; proxy_pass http://$to$uri; }
    location /secure { proxy_pass https://app; }
    location /grpc { grpc_pass grpc://app; }
    location /php { fastcgi_pass unix:/run/php.sock; }
    location /uwsgi { uwsgi_pass app; }
    location /scgi { scgi_pass 127.0.0.1:4000; }
    location /kept { set $memcached_key x$uri; memcached_pass app; }
    location /file { }
} }";
    for (path, expected) in [
        ("/plain/a?b", Some("http://app/base/a?b")),
        ("/named/a", Some("http://127.0.0.1:2/named/a")),
        ("/secure/a?b", Some("https://app/secure/a?b")),
        ("/grpc/a.B/C", Some("grpc://app")),
        ("/php/a.php", Some("fastcgi://unix:/run/php.sock")),
        ("/uwsgi", Some("uwsgi://app")),
        ("/scgi", Some("scgi://127.0.0.1:4000")),
        ("/kept", Some("memcached://app, key x/kept")),
        ("/file", None),
    ] {
        let output =
            server().arg("-q").arg("--explain").arg(format!("http://x:8399{path}")).run(conf).unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let line = |about: &str| text.lines().find_map(|line| Some(line.strip_prefix(about)?.trim()));
        assert_eq!(line("upstream "), expected, "{path}: {text}");
        assert_eq!(line("file ").is_some(), expected.is_none(), "{path}: {text}");
    }
}

#[test]
fn explain_shows_caches() {
    let conf = "http {
proxy_cache_path cache levels=1:2 keys_zone=one:1m;
map $request_method $purge { default 0; PURGE 1; }
server {
    listen 127.0.0.1:8399;
    proxy_cache one; proxy_cache_bypass $arg_fresh; proxy_cache_purge $purge;
    location / { proxy_pass http://127.0.0.1:1; }
    location /own/ { proxy_pass http://127.0.0.1:1; proxy_cache_key $proxy_host$uri; }
    location /named/ { proxy_pass http://127.0.0.1:1; proxy_cache $arg_cache; }
    location /off/ { proxy_pass http://127.0.0.1:1; proxy_cache off; }
} }";
    for (url, expected) in [
        ("/a?b", Some("cache one: key http://127.0.0.1:1/a?b")),
        ("/a?fresh=1", Some("cache one: bypassed, key http://127.0.0.1:1/a?fresh=1")),
        ("/own/x?b", Some("cache one: key 127.0.0.1:1/own/x")),
        ("/named/?cache=one", Some("cache one: key http://127.0.0.1:1/named/?cache=one")),
        ("/named/?cache=two", Some("cache \"two\", which is none: 500")),
        ("/named/", None),
        ("/off/", None),
        ("POST /a", Some("cache one: not asked for this method, key http://127.0.0.1:1/a")),
        ("PURGE /own/", Some("cache one: purged, key 127.0.0.1:1/own/")),
    ] {
        let (method, path) = url.split_once(' ').unwrap_or(("GET", url));
        let url = format!("{method} http://x:8399{path}");
        let output = server().arg("-q").arg("--explain").arg(&url).run(conf).unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines().skip_while(|line| !line.starts_with("cache "));
        let line = lines.next().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!(line.as_deref(), expected, "{url}: {text}");
        if path == "/own/x?b" {
            // The MD5 of the key.
            let file = lines.next().unwrap();
            assert!(file.ends_with("/cache/9/cd/e54643842941f049f0141073eb5c1cd9"), "{file}");
        }
    }
}

#[test]
fn explain_shows_file_and_line() {
    let (text, ..) = explained("http://example.com:8399/new/");
    for (about, line) in [("listen ", 3), ("server ", 2), ("location ", 6)] {
        let found_text = text.lines().find(|line| line.starts_with(about)).unwrap();
        // The test kit puts lines in front of the configuration, which move every line by as much.
        let number: usize = found_text.rsplit_once(':').unwrap().1.parse().unwrap();
        let first: usize = text
            .lines()
            .find(|t| t.starts_with("server "))
            .unwrap()
            .rsplit_once(':')
            .unwrap()
            .1
            .parse()
            .unwrap();
        assert_eq!(number + 2, first + line, "{text}");
    }
}

#[test]
fn invalid_urls_are_refused() {
    for (url, expected) in [
        ("http://example.com:81/", "tailwater: no server listens on port 81 (listening: 127.0.0.1:8399)\n"),
        ("http://127.0.0.9:8399/", "tailwater: no server listens on port 8399 (listening: 127.0.0.1:8399)\n"),
        (
            "ftp://a/",
            "tailwater: invalid URL \"ftp://a/\" in option \"--explain\" (as http://example.com/a?b, or /a?b)\n",
        ),
        ("http://a:8399/%zz", "tailwater: such a request is refused with 400: client sent invalid request\n"),
    ] {
        let (text, success, err) = explained(url);
        assert_eq!((&*text, success), ("", false), "{url}");
        assert_eq!(err, expected, "{url}");
    }
}

#[test]
fn explain_starts_no_server() {
    // The port is another server's, which goes on serving.
    let running = start(server(), "server { listen 127.0.0.1:{port}; return 200 here; }");
    let port = running.addr().port().to_string();
    let output = server()
        .arg("-t")
        .arg(format!("--explain=http://127.0.0.1:{port}/"))
        .run(&format!("http {{ access_log logs/none.log; server {{ listen 127.0.0.1:{port}; }} }}"))
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("test is successful"));
    assert_eq!(get(&running, "/").text(), "here");
}

#[test]
fn explain_follows_internal_redirects_to_the_answer() {
    let conf = "http {
server {
    listen 127.0.0.1:8399; server_name app.example;
    root html; index index.php index.html;
    location / { try_files $uri $uri/ /index.php?$query_string; }
    location /old/ { try_files $uri @moved; }
    location @moved { return 301 /new; }
    location /pages/ { try_files $uri.html =404; error_page 404 /missing.html; }
    location /loop { try_files /none /loop; }
    location /plain/ { try_files $uri $uri/ =404; autoindex on; }
    location ~ \\.php$ {
        fastcgi_pass unix:/run/php.sock;
        fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
    }
} }";
    let explained = |url: &str| {
        let files = ["index.php", "logo.png", "pages/a.html", "missing.html", "plain/list/x"];
        let server =
            files.into_iter().fold(server(), |server, name| server.file(format!("html/{name}"), "x"));
        let output = server.arg("-q").arg("--explain").arg(url).run(conf).unwrap();
        assert!(output.status.success(), "{url}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut words = text.split_whitespace();
        let prefix = words.find_map(|word| Some(word.split_once("/conf/nginx.conf")?.0)).unwrap();
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n").replace(prefix, "P")
    };
    for (path, lines) in [
        (
            "/about?x=1",
            &[
                "location /: ",
                "html/about/, else /index.php?x=1",
                "redirect internal, to /index.php?x=1",
                "location ~ \\.php$: ",
                "upstream fastcgi://unix:/run/php.sock",
                "script ",
                "html/index.php",
                "limits ",
            ][..],
        ),
        ("/", &["redirect internal, to /index.php", "upstream fastcgi://unix:/run/php.sock"]),
        ("/logo.png", &["html/logo.png (1 bytes)", "answer by module static", "response 200"]),
        ("/old/a", &["redirect to the named location @moved", "location @moved", "response 301, to"]),
        ("/pages/a", &["html/pages/a.html (1 bytes)", "response 200"]),
        (
            "/pages/b",
            &["error_page 404 goes on as /missing.html", "html/missing.html (1 bytes)", "response 404"],
        ),
        ("/loop", &["redirect internal, to /loop", "response 500"]),
        ("/plain/list/", &["html/plain/list/ (a directory)", "answer by module autoindex", "response 200"]),
        ("/plain/list", &["answer 301, by module static", "response 301"]),
    ] {
        let text = explained(&format!("http://app.example:8399{path}"));
        let mut rest = &*text;
        for line in lines {
            let at = rest
                .find(line)
                .unwrap_or_else(|| panic!("{path}: {line} is not there, or not yet, in\n{text}"));
            rest = &rest[at + line.len()..];
        }
        // A path alone is for the only server.
        assert_eq!(explained(path), text, "{path}");
    }
}
