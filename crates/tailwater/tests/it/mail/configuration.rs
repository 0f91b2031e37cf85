//! Mistakes in a `mail` block, and a configuration of nginx's documentation.

use crate::support::{refusal_of, server};

#[test]
fn mistakes_have_the_words_of_nginx() {
    let auth = "auth_http http://127.0.0.1:1/;";
    for (mail, expected) in [
        (format!("{auth} server {{ protocol imap; }}"), "no \"listen\" is defined for server"),
        (format!("{auth} server {{ listen 127.0.0.1:{{port}}; }}"), "unknown mail protocol for server"),
        (
            format!("{auth} server {{ listen 127.0.0.1:{{port}}; protocol nntp; }}"),
            "unknown protocol \"nntp\"",
        ),
        (
            "server { listen 127.0.0.1:{port}; protocol imap; }".to_owned(),
            "no \"auth_http\" is defined for server",
        ),
        (
            format!("{auth} server {{ listen 127.0.0.1:{{port}}; protocol imap; starttls on; }}"),
            "no \"ssl_certificate\" is defined for the \"starttls\" directive",
        ),
        (
            format!("{auth} server {{ listen 127.0.0.1:{{port}} ssl; protocol imap; }}"),
            "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive",
        ),
        (
            format!(
                "{auth} server {{ listen 127.0.0.1:{{port}}; protocol imap; }}
                 server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}"
            ),
            "address and port pair",
        ),
        (
            format!("{auth} server {{ listen 127.0.0.1:{{port}} default_server; protocol imap; }}"),
            "invalid parameter \"default_server\"",
        ),
        (format!("{auth} imap_auth apop;"), "invalid value \"apop\""),
        (format!("{auth} proxy_pass 127.0.0.1:1;"), "\"proxy_pass\" directive is not allowed here"),
        (format!("{auth} ssl_stapling on;"), "\"ssl_stapling\" directive is not allowed here"),
    ] {
        // A test has a port.
        let http = "http { server { listen 127.0.0.1:{port9}; } }";
        let refusal = refusal_of(&format!("mail {{ {mail} }} {http}"));
        assert!(refusal.contains(expected), "{mail}: {refusal}");
    }
}

/// The example of nginx's page on the mail core module, with ports of the test.
#[test]
fn example_of_the_documentation_is_accepted() {
    let conf = "
        worker_processes auto;
        mail {
            server_name       mail.example.com;
            auth_http         localhost:9000/cgi-bin/nginxauth.cgi;
            imap_capabilities IMAP4rev1 UIDPLUS IDLE LITERAL+ QUOTA;
            pop3_auth         plain apop cram-md5;
            pop3_capabilities LAST TOP USER PIPELINING UIDL;
            smtp_auth         login plain cram-md5;
            smtp_capabilities \"SIZE 10485760\" ENHANCEDSTATUSCODES 8BITMIME DSN;
            xclient           off;
            server { listen 127.0.0.1:{port}; protocol smtp; }
            server { listen 127.0.0.1:{port1}; protocol pop3; proxy_pass_error_message on; }
            server { listen 127.0.0.1:{port2}; protocol imap; }
            server { listen 127.0.0.1:{port3}; protocol smtp; timeout 5s; proxy on; proxy_buffer 8k; }
        }";
    server().start(conf).unwrap();
}

#[test]
fn session_is_explained() {
    let conf = "mail {
    upstream auth { server 127.0.0.1:9000; server 127.0.0.1:9001 backup; }
    auth_http http://auth/login;
    server { listen 143; protocol imap; starttls off; imap_auth plain cram-md5; }
    server { listen 127.0.0.1:110; protocol pop3; }
}
";
    let explain = |url: &str| {
        let output = server().arg("-q").arg("--explain").arg(url).run(conf).unwrap();
        let out = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let lines = explain("imap://mail.example.com");
    for expected in [
        "protocol imap",
        "starttls off",
        "login plain cram-md5",
        "auth_http http://auth/login",
        "127.0.0.1:9000",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:?}");
    }
    assert!(lines[0].starts_with("listen 0.0.0.0:143 "), "{lines:?}");
    for (url, expected) in [
        ("imap://127.0.0.1:110", "the server of 127.0.0.1:110 speaks pop3"),
        ("pop3s://127.0.0.1:110", "127.0.0.1:110 expects no TLS handshake: pop3://"),
        ("smtp://127.0.0.1", "no server listens on"),
    ] {
        let lines = explain(url);
        assert!(lines.iter().any(|line| line.contains(expected)), "{url}: {lines:?}");
    }
}
