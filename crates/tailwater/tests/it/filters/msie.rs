//! `msie_padding`, `msie_refresh`

use crate::support::{refusal, request, server, start, start_server};

const MSIE: &str = "User-Agent: Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 6.0)";
const CHROME: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/120.0.0.0 Safari/537.36";
const FIREFOX: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:120.0) Gecko/20100101 Firefox/120.0";

#[test]
fn msie_padding_extends_error_pages() {
    let server = start_server(
        server(),
        "location /off { msie_padding off; return 404; } location /500 { return 500; }
         location /301 { return 301 /x; } location /own { return 404 own; } location /599 { return 599; }",
    );
    for (target, agent, longer) in [
        ("/missing", MSIE, true),
        ("/missing", CHROME, true),
        ("/missing", FIREFOX, false),
        ("/missing", "User-Agent: curl/8", false),
        ("/500", CHROME, true),
        ("/off", MSIE, false),
        ("/301", CHROME, false),
        ("/own", CHROME, false),
        ("/599", CHROME, false),
    ] {
        let response = request(&server, &format!("GET {target}"), &[agent]);
        assert_eq!(response.body.len() > 512, longer, "{target} {agent}: {}", response.text());
        assert_eq!(response.text().contains("padding"), longer, "{target} {agent}");
        assert_eq!(response.field("Content-Length"), Some(&*response.body.len().to_string()), "{target}");
        let head = request(&server, &format!("HEAD {target}"), &[agent]);
        assert_eq!(head.field("Content-Length"), response.field("Content-Length"), "{target} {agent}");
    }
}

#[test]
fn msie_refresh_replaces_redirects() {
    let server = start(
        server().file("html/dir/x", ""),
        "server { listen 127.0.0.1:{port}; root html; msie_refresh on; error_page 410 http://example.com/410;
           location /to { return 302 http://example.com/$arg_x; } location /space { return 301 'a b<\"'; }
           location /307 { return 307 /x; } location /410 { return 410; } location /dir { }
           location /off { msie_refresh off; return 302 /x; } }",
    );
    for (target, agent, status, url) in [
        ("/to?x=y&z~%41", MSIE, 200, Some("http://example.com/y")),
        ("/space", MSIE, 200, Some("a%20b%3C%22")),
        ("/410", MSIE, 200, Some("http://example.com/410")),
        ("/dir", MSIE, 200, Some("/dir/")),
        ("/to", CHROME, 302, None),
        ("/410", CHROME, 302, None),
        ("/307", MSIE, 307, None),
        ("/off", MSIE, 302, None),
    ] {
        let response = request(&server, &format!("GET {target}"), &[agent]);
        assert_eq!(response.status, status, "{target} {agent}");
        assert_eq!(response.field("Location").is_some(), url.is_none(), "{target} {agent}");
        assert_eq!(response.field("Content-Type"), Some("text/html"), "{target} {agent}");
        if let Some(url) = url {
            let page = response.text();
            assert!(
                page.contains(&format!("http-equiv=\"Refresh\" content=\"0; URL={url}\"")),
                "{target}: {page}"
            );
        }
    }
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("msie_padding yes;", "invalid value \"yes\" in \"msie_padding\" directive"),
        ("msie_refresh on; msie_refresh on;", "\"msie_refresh\" directive is duplicate"),
        ("location / { if ($uri) { msie_refresh on; } }", "\"msie_refresh\" directive is not allowed here"),
        ("resolver 192.0.2.1 valid=x;", "invalid parameter: valid=x"),
        ("resolver ipv6=off;", "no name servers defined"),
        ("resolver 192.0.2.1; resolver 192.0.2.2;", "\"resolver\" directive is duplicate"),
        ("resolver_timeout soon;", "\"resolver_timeout\" directive invalid value"),
        ("early_hints $no_such_variable;", "unknown \"no_such_variable\" variable"),
        ("keepalive_min_timeout x;", "\"keepalive_min_timeout\" directive invalid value"),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
    start_server(
        server(),
        "resolver 192.0.2.1 [::1]:5353 valid=1m; resolver_timeout 5s; early_hints $http_x 1; early_hints $uri;",
    );
}
