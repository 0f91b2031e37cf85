//! `auth_basic`, and `satisfy` and `auth_delay` with it

use tw_testkit::{Client, Response, Server, wait};

use crate::support::{get, is_root, refusal, request, server, start_server};

const APR1: &str = "$apr1$saltsalt$yAAkm4libquA.ZWLHbSBq/";

/// Base64 (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= group.len() { digit.into() } else { '=' });
        }
    }
    out
}

fn login(server: &Server, target: &str, credentials: &str) -> Response {
    let field = format!("Authorization: Basic {}", base64(credentials.as_bytes()));
    request(server, &format!("GET {target}"), &[&field])
}

#[test]
fn every_kind_of_hash_is_accepted() {
    let users = format!(
        "# users\n\nplain:{{PLAIN}}password\nsha:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\r\n\
         ssha:{{SSHA}}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0\napr1:{APR1}\nmd5:$1$salt$qJH7.N4xYta3aEG/dfqo/0\n\
         des:sa3tHJ3/KuYvI\nsha256:$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5:a comment\n\
         bcrypt:$2y$04$saltsaltsaltsaltsaltsOh9rCgsOi8IYqmtEm1s6duinLpzU3Bba\n\
         yes:$y$j75$saltsaltsalt$EJVmvLaWqQibNwAKXpgavjVqkjgw4EyKMKuwMa4X504\n\
         plain:{{PLAIN}}second\nempty:{{PLAIN}}\nunknown:$7$abc\nbroken:$6$x\nlast:{{PLAIN}}end"
    );
    let server = start_server(
        server().file("html/index.html", "in").file("conf/users", users),
        "auth_basic \"the $server_name realm\"; auth_basic_user_file users; server_name closed;
         error_log logs/error.log info; location /user { try_files /x @user; } location @user { return 200 $remote_user; }
         location /off { auth_basic off; } location /none { auth_basic_user_file none; }
         location /some { auth_basic $arg_realm; } location /named { auth_basic_user_file $arg_file; }",
    );
    let kinds = ["plain", "sha", "ssha", "apr1", "md5", "des", "sha256", "bcrypt", "yes"];
    for user in kinds {
        for (password, status) in [("password", 200), ("password", 200), ("Password", 401), ("", 401)] {
            let response = login(&server, "/", &format!("{user}:{password}"));
            assert_eq!(response.status, status, "{user} {password}");
        }
    }
    for (credentials, status) in [
        ("last:end", 200),
        ("empty:", 200),
        ("plain:second", 401),
        ("nobody:password", 401),
        ("# users:x", 401),
        ("unknown:abc", 401),
        ("broken:abc", 401),
        ("plain", 401),
        (":password", 401),
        ("plain:password:more", 401),
        ("plain:password\0", 401),
    ] {
        assert_eq!(login(&server, "/", credentials).status, status, "{credentials:?}");
    }
    let refused = get(&server, "/");
    assert_eq!(refused.status, 401);
    assert_eq!(refused.field("WWW-Authenticate"), Some("Basic realm=\"the closed realm\""));
    assert!(refused.text().contains("401 Authorization Required"), "{}", refused.text());
    assert_eq!(login(&server, "/", "plain:password").field("WWW-Authenticate"), None);
    assert_eq!(login(&server, "/user", "apr1:password").text(), "apr1");
    assert_eq!(get(&server, "/off").status, 404);
    assert_eq!(get(&server, "/some?realm=off").status, 404);
    assert_eq!(get(&server, "/some?realm=on").status, 401);
    assert_eq!(login(&server, "/none", "plain:password").status, 403);
    let path = server.prefix().join("conf/users");
    for (target, status) in [
        (format!("/named?file={}", path.display()), 404),
        ("/named?file=/none".into(), 403),
        ("/named?file=".into(), 500),
        ("/named?file=users".into(), 404),
        ("/named?file=../conf/users".into(), 404),
        ("/named?file=/".into(), 500),
    ] {
        assert_eq!(login(&server, &target, "plain:password").status, status, "{target}");
    }
    for field in [
        "Authorization: Basic",
        "Authorization: Basic ",
        "Authorization: Basic !!!!",
        "Authorization: Basic A",
        "Authorization: Basic ====",
        "Authorization: Bearer cGxhaW46cGFzc3dvcmQ=",
        "Authorization:",
    ] {
        assert_eq!(request(&server, "GET /", &[field]).status, 401, "{field}");
    }
    assert_eq!(request(&server, "GET /", &["authorization: BASIC   cGxhaW46cGFzc3dvcmQ"]).status, 200);
    for line in [
        "[info] no user/password was provided for basic authentication, client: 127.0.0.1",
        "[error] user \"nobody\" was not found in \"",
        "[error] user \"yes\": password mismatch, client: 127.0.0.1",
        "[error] user \"unknown\": the password has a hash of an unknown kind ($7$) in \"",
        "[error] user \"broken\": the hash of the password ($6$) cannot be read",
        "conf/none\" failed (2: No such file or directory)",
    ] {
        let (level, text) = line.split_once("] ").unwrap_or(("", line));
        let is_told = || server.error_log().lines().any(|l| l.contains(level) && l.contains(text));
        assert!(wait::until(wait::TIMEOUT, is_told), "{line}\n{}", server.error_log());
    }
}

#[test]
fn changed_user_file_is_used_by_the_next_request() {
    let file = |password: &str| format!("user:{{PLAIN}}{password}\nslow:{APR1}\n");
    let server = start_server(
        server().file("html/index.html", "in").file("conf/users", file("one")),
        "auth_basic realm; auth_basic_user_file users;",
    );
    let path = server.prefix().join("conf/users");
    assert_eq!(login(&server, "/", "slow:password").status, 200);
    // The new file has the length of the old one, so only its times show the change.
    for password in ["two", "six", "ten", "own", "one"] {
        std::fs::write(&path, file(password)).unwrap();
        assert_eq!(login(&server, "/", &format!("user:{password}")).status, 200, "{password}");
        assert_eq!(login(&server, "/", "user:old").status, 401);
    }
    assert_eq!(login(&server, "/", "slow:password").status, 200);
    std::fs::write(&path, "slow:$apr1$x$PI/3WflFdXDRxHXCckmwU.\n").unwrap();
    assert_eq!(login(&server, "/", "slow:password").status, 401, "what was remembered no longer fits");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(login(&server, "/", "user:one").status, 403);
    // An old file is kept; another one in its place is seen.
    let other = server.prefix().join("conf/other");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    for password in ["old", "new"] {
        std::fs::write(&other, file(password)).unwrap();
        std::fs::File::options().write(true).open(&other).unwrap().set_modified(old).unwrap();
        std::fs::rename(&other, &path).unwrap();
        for _ in 0..3 {
            assert_eq!(login(&server, "/", &format!("user:{password}")).status, 200);
        }
    }
}

#[test]
fn unreadable_user_file_is_500() {
    if is_root("an unreadable file of users") {
        return;
    }
    let server = start_server(
        server().file("html/index.html", "in").file("conf/users", "user:{PLAIN}x"),
        "auth_basic realm; auth_basic_user_file users;",
    );
    use std::os::unix::fs::PermissionsExt;
    let path = server.prefix().join("conf/users");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(login(&server, "/", "user:x").status, 500);
    server.wait_error_log("failed (13: Permission denied)").unwrap();
}

#[test]
fn too_large_user_file_is_500() {
    let server = start_server(
        server().file("html/index.html", "in").file("conf/large", vec![b'\n'; (16 << 20) + 1]),
        "auth_basic realm; auth_basic_user_file large;",
    );
    assert_eq!(login(&server, "/", "user:x").status, 500);
    server.wait_error_log("has more than 16777216 bytes").unwrap();
}

#[test]
fn many_users_log_in_at_once() {
    let users: String = (0..40).map(|n| format!("user{n}:{APR1}\n")).collect();
    let server = start_server(
        server().file("html/index.html", "in").file("conf/users", users),
        "auth_basic realm; auth_basic_user_file users;",
    );
    std::thread::scope(|scope| {
        for n in 0..40 {
            let server = &server;
            scope.spawn(move || {
                assert_eq!(login(server, "/", &format!("user{n}:password")).status, 200);
                assert_eq!(login(server, "/", &format!("user{n}:passworD")).status, 401);
            });
        }
    });
}

/// Sends a login and does not read the response. The log shows the credentials as the target.
fn send_login(server: &Server, client: &str, credentials: &str) -> Client {
    let mut connection = server.connect().unwrap();
    let basic = base64(credentials.as_bytes());
    let head = format!("Host: x\r\nX-Real-IP: {client}\r\nAuthorization: Basic {basic}\r\n");
    connection.send(format!("GET /?{credentials} HTTP/1.1\r\n{head}\r\n")).unwrap();
    connection
}

/// A server with a user whose hash takes about a second and another one whose hash is fast.
fn server_with_a_slow_user() -> Server {
    // The hash is well-formed but belongs to no password.
    let digest = format!("{}1", "a".repeat(85));
    let users = format!(
        "slow:$6$rounds=500000$saltsalt${digest}\nsecond:$6$rounds=500000$saltsalt${digest}\nfast:{APR1}\n"
    );
    start_server(
        server().file("html/index.html", "in").file("conf/users", users),
        "auth_basic realm; auth_basic_user_file users; set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP;
         error_log logs/error.log info;",
    )
}

#[test]
fn hashes_for_clients_that_left_delay_no_other_client() {
    let server = server_with_a_slow_user();
    for name in ["slow", "nobody"] {
        let clients: Vec<_> =
            (0..60).map(|n| send_login(&server, "127.0.0.1", &format!("{name}:{n}"))).collect();
        drop(clients);
        assert_eq!(login(&server, "/", "fast:password").status, 200);
    }
    server.wait_error_log("client prematurely closed connection").unwrap();
}

#[test]
fn hashing_alternates_between_clients_and_is_bounded_for_each() {
    let server = server_with_a_slow_user();
    let mut guesses: Vec<_> =
        (0..180).map(|n| send_login(&server, "10.0.0.1", &format!("slow:{n}"))).collect();
    // The requests that are read last are refused, in whatever order they were sent.
    let line = server.wait_error_log("too many passwords wait to be hashed, client: 10.0.0.1").unwrap();
    let refused: usize =
        line.split_once("GET /?slow:").unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
    let refused = guesses[refused].read_response().unwrap();
    assert_eq!((refused.status, refused.field("Retry-After")), (503, Some("1")));
    let mut other = send_login(&server, "10.0.0.2", "fast:password");
    assert_eq!(other.read_response().unwrap().status, 200);
}

#[test]
fn too_long_password_is_refused_without_hashing() {
    let server = server_with_a_slow_user();
    for user in ["slow", "nobody", "fast"] {
        let waiting: Vec<_> = (0..60)
            .map(|n| send_login(&server, "127.0.0.1", &format!("{user}:{n}{}", "x".repeat(5000))))
            .collect();
        for mut connection in waiting {
            assert_eq!(connection.read_response().unwrap().status, 401, "{user}");
        }
    }
    server.wait_error_log("user \"slow\": the password has more than 512 bytes").unwrap();
}

#[test]
fn satisfy_combines_passwords_and_addresses() {
    let server = start_server(
        server().file("html/index.html", "in").file("conf/users", "user:{PLAIN}x"),
        "auth_basic realm; auth_basic_user_file users; error_page 401 /401; location = /401 { auth_basic off; return 401 asked; }
         location /any/ { satisfy any; deny all; alias html/; } location /free/ { satisfy any; allow all; alias html/; }
         location /all/ { deny all; alias html/; } location /both/ { allow all; alias html/; }
         location /methods { limit_except GET { auth_basic off; deny all; } }
         location /page/ { auth_basic other; alias html/; error_page 401 = @page; } location @page { return 200 instead; }",
    );
    for (target, without, with) in [
        ("/any/", 401, 200),
        ("/free/", 200, 200),
        ("/all/", 403, 403),
        ("/both/", 401, 200),
        ("/methods", 401, 404),
    ] {
        let response = get(&server, target);
        assert_eq!(response.status, without, "{target}");
        assert_eq!(response.field("WWW-Authenticate").is_some(), without == 401, "{target}");
        assert_eq!(login(&server, target, "user:x").status, with, "{target}");
    }
    assert_eq!(get(&server, "/both/").text(), "asked");
    let response = get(&server, "/page/");
    assert_eq!((response.status, response.text().as_str()), (200, "instead"));
    assert_eq!(request(&server, "DELETE /methods", &[]).status, 403);
}

#[test]
fn auth_delay_delays_refusals_only() {
    let server = start_server(
        server().file("html/index.html", "in").file("conf/users", "user:{PLAIN}x"),
        "auth_basic realm; auth_basic_user_file users; auth_delay 300ms; error_log logs/error.log info;
         location /any/ { satisfy any; deny all; alias html/; } location /deny/ { deny all; alias html/; }",
    );
    // The log says how many requests were delayed so far. That a delayed request waits is tested in `limit_req`, with a
    // client that goes away.
    for (target, credentials, status, delayed) in [
        ("/", "user:x", 200, 0),
        ("/", "user:y", 401, 1),
        ("/any/", "user:y", 401, 2),
        ("/any/", "user:x", 200, 2),
        ("/deny/", "user:x", 403, 2),
    ] {
        assert_eq!(login(&server, target, credentials).status, status, "{target}");
        let find = || server.error_log().matches("delaying unauthorized request, client: 127.0.0.1").count();
        assert!(wait::until(wait::TIMEOUT, || find() == delayed), "{target} {credentials}: {}", find());
    }
}

#[test]
fn malformed_directives_are_refused() {
    for (text, said) in [
        ("auth_basic;", "invalid number of arguments in \"auth_basic\" directive"),
        ("auth_basic a; auth_basic b;", "\"auth_basic\" directive is duplicate"),
        (
            "auth_basic_user_file a; auth_basic_user_file b;",
            "\"auth_basic_user_file\" directive is duplicate",
        ),
        ("auth_basic $nothing; auth_basic_user_file a;", "unknown \"nothing\" variable"),
        ("auth_delay soon;", "\"auth_delay\" directive invalid value"),
    ] {
        let found_text = refusal(text);
        assert!(found_text.contains(said), "{text}: {found_text}");
    }
}
