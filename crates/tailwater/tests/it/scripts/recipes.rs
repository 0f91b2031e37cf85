//! Recipes of `docs/script-recipes.md`, as they are there.

use std::fs;
use std::path::Path;

use tw_testkit::{Client, Response, Server, wait};

use super::scripted;
use crate::support::server;

/// The application of all recipes, its second version, and what they are asked for.
const APPLICATION: &str = "http {
    server {
        listen 127.0.0.1:{port};
        location / { add_header Set-Cookie a=1; add_header Set-Cookie 'b=2; Secure'; return 200 'app $uri [$http_x_user] ann@example.com'; }
        location = /check { access_log logs/checks.log; if ($http_authorization = good) { return 204; } return 401; }
        location = /api/user { return 200 '{\"name\":\"ann\"}'; }
        location = /api/orders { return 200 '[1,2]'; }
        location = /blocked { return 200 '192.0.2.1\n127.0.0.1\n'; }
    }
    server { listen 127.0.0.1:{port1}; return 200 new; } }";

/// A recipe that runs, and the application behind it.
struct Recipe {
    server: Server,
    application: Server,
}

/// The blocks of a recipe: configuration and script.
fn blocks(heading: &str) -> (String, String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/script-recipes.md");
    let text = fs::read_to_string(file).unwrap();
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("{heading}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let block = |kind: &str| {
        let (_, rest) = section.split_once(&format!("```{kind}\n")).unwrap_or_else(|| panic!("{heading}"));
        rest.split("```").next().unwrap_or_default().to_owned()
    };
    (block("nginx"), block("js"))
}

/// Starts a recipe in front of the application.
fn start(heading: &str) -> Option<Recipe> {
    let (conf, script) = blocks(heading);
    let application = server().start(APPLICATION).unwrap();
    let addressed = |text: &str| {
        let text = text.replace("127.0.0.1:8080", &application.addr().to_string());
        text.replace("127.0.0.1:8081", &application.addr_of(1).to_string())
    };
    let conf = addressed(&conf).replace("listen 80;", "listen 127.0.0.1:{port};");
    let server = scripted(&addressed(&script))?.start(&format!("http {{ {conf} }}")).unwrap();
    Some(Recipe { server, application })
}

/// Response to a request with these fields, each with a line end.
fn get(server: &Server, target: &str, fields: &str) -> Response {
    let mut client = Client::connect(server.addr()).unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")).unwrap();
    client.read_response().unwrap()
}

#[test]
fn answer_with_json() {
    let Some(Recipe { server, application: _application }) = start("Answer with JSON") else { return };
    let response = get(&server, "/whoami", "User-Agent: trial\r\n");
    assert_eq!(response.field("Content-Type"), Some("application/json"));
    assert_eq!(response.text(), r#"{"address":"127.0.0.1","agent":"trial"}"#);
}

#[test]
fn send_a_tenth_of_the_users_to_a_new_version() {
    let Some(Recipe { server, application: _application }) =
        start("Send a tenth of the users to a new version")
    else {
        return;
    };
    let is_new = |user| get(&server, "/", &format!("Cookie: user={user}\r\n")).text() == "new";
    let users: Vec<bool> = (0..100).map(is_new).collect();
    let count = users.iter().filter(|is_new| **is_new).count();
    assert!((2..25).contains(&count), "{count}");
    assert_eq!((0..100).map(is_new).collect::<Vec<_>>(), users, "each user keeps the version");
}

#[test]
fn check_signed_links() {
    let Some(Recipe { server, application: _application }) = start("Check signed links") else { return };
    let sign = "QAFadtCPgZLsh0hYy9PlpYHNyjrNWQYeawxV_wtJk3s";
    for (target, status) in [
        (format!("/download/a?expires=4102444800&sign={sign}"), 200),
        (format!("/download/b?expires=4102444800&sign={sign}"), 403),
        (format!("/download/a?expires=4102444801&sign={sign}"), 403),
        ("/download/a".to_owned(), 403),
    ] {
        assert_eq!(get(&server, &target, "").status, status, "{target}");
    }
}

#[test]
fn check_a_token() {
    let Some(Recipe { server, application: _application }) = start("Check a token") else { return };
    let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.smZZ8MPaDgotxo1D98cFfXd3XE37CXy7QGMhGo6egaE";
    let good = get(&server, "/", &format!("Authorization: Bearer {token}\r\n"));
    assert!(good.text().starts_with("app / [ann]"), "{}", good.text());
    for fields in ["", "Authorization: Bearer a.b.c\r\n", &format!("Authorization: Bearer {token}x\r\n")] {
        assert_eq!(get(&server, "/", fields).status, 401, "{fields}");
    }
    server.wait_error_log("refused: the signature is wrong").unwrap();
}

#[test]
fn ask_another_service_and_remember_its_answer() {
    let Some(Recipe { server, application }) = start("Ask another service, and remember its answer") else {
        return;
    };
    for _ in 0..3 {
        assert_eq!(get(&server, "/", "Authorization: good\r\n").status, 200);
        assert_eq!(get(&server, "/", "Authorization: bad\r\n").status, 403);
    }
    assert_eq!(application.log("logs/checks.log", 2).unwrap().len(), 2, "each key is asked about once");
}

#[test]
fn limit_logins_by_user() {
    let Some(Recipe { server, application: _application }) = start("Limit logins by user") else { return };
    let login = |user: &str| {
        let form = format!("user={user}&password=x");
        let mut client = Client::connect(server.addr()).unwrap();
        let fields = "Content-Type: application/x-www-form-urlencoded\r\n";
        let length = form.len();
        let head =
            format!("POST /login HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {length}\r\n\r\n");
        client.send(head + &form).unwrap();
        client.read_response().unwrap().status
    };
    assert_eq!([(); 5].map(|()| login("ann")), [200, 200, 200, 429, 429]);
    assert_eq!(login("bob"), 200);
}

#[test]
fn harden_cookies() {
    let Some(Recipe { server, application: _application }) = start("Harden cookies") else { return };
    let response = get(&server, "/", "");
    assert_eq!(response.values("Set-Cookie").collect::<Vec<_>>(), ["a=1; Secure; HttpOnly", "b=2; Secure"]);
}

#[test]
fn hide_mail_addresses_in_pages() {
    let Some(Recipe { server, application: _application }) = start("Hide mail addresses in pages") else {
        return;
    };
    for _ in 0..2 {
        assert_eq!(get(&server, "/page", "").text(), "app /page [] ***");
    }
}

#[test]
fn join_two_answers() {
    let Some(Recipe { server, application: _application }) = start("Join two answers") else { return };
    let response = get(&server, "/start", "");
    assert_eq!(response.text(), r#"{"user":{"name":"ann"},"orders":[1,2]}"#);
}

#[test]
fn keep_secrets_out_of_the_log() {
    let Some(Recipe { server, application: _application }) = start("Keep secrets out of the log") else {
        return;
    };
    assert_eq!(get(&server, "/a?token=abc&b=1", "").status, 200);
    let lines = server.access_log(1).unwrap();
    assert!(lines.contains(&"127.0.0.1 \"GET /a?token=***&b=1\" 200".to_owned()), "{lines:?}");
}

#[test]
fn refresh_a_list_in_intervals() {
    let Some(Recipe { server, application: _application }) = start("Refresh a list in intervals") else {
        return;
    };
    let is_blocked = || get(&server, "/", "").status == 403;
    assert!(wait::until(wait::TIMEOUT, is_blocked), "{}", server.error_log());
}
