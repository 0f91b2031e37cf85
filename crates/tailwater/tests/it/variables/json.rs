//! `json_set`

use tw_testkit::Server;

use crate::support::{page, refusal_of, server, start};

/// Text of the response to a request with this body.
fn post(server: &Server, target: &str, body: &str) -> String {
    let mut client = server.connect().unwrap();
    let len = body.len();
    client
        .send(format!(
            "POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
        ))
        .unwrap();
    client.read_response().unwrap().text()
}

#[test]
fn values_of_a_document_are_variables() {
    let server = start(
        server(),
        "json_set $name $arg_data user.name; json_set $age $ARG_DATA user.age; json_set $tag0 $arg_data tags[0];
         json_set $user $arg_data user; json_set $dotted $arg_data '[\"a.b\"]'; json_set $other $http_x user.name;
         server { listen 127.0.0.1:{port}; location / { return 200 '$name|$age|$tag0|$user|$dotted|$other'; } }",
    );
    for (data, expected) in [
        (r#"{"user":{"name":"joe","age":30},"tags":["a"]}"#, r#"joe|30|a|{"name":"joe","age":30}||"#),
        (r#"{"a.b":1.0,"tags":[],"user":null}"#, "|||null|1.0|"),
        (r#"{"user":{"name":"j\u00f6e"}}"#, "j\u{f6}e|||{\"name\":\"j\\u00f6e\"}||"),
        (r#"{"user":{"name":"joe"}"#, "|||||"),
        ("", "|||||"),
        ("joe", "|||||"),
    ] {
        assert_eq!(page(&server, &format!("/?data={data}")).1, expected, "{data}");
    }
}

#[test]
fn requests_are_routed_by_their_bodies() {
    let server = start(
        server(),
        "client_body_early_read 1; json_set $method $request_body method;
         map $method $is_call { tools/call 1; }
         server {
           listen 127.0.0.1:{port};
           location / { return 200 'other $method'; }
           location $is_call { return 200 'call'; }
         }",
    );
    assert_eq!(post(&server, "/", r#"{"method":"tools/call"}"#), "call");
    assert_eq!(post(&server, "/", r#"{"method":"tools/list"}"#), "other tools/list");
    assert_eq!(post(&server, "/", "{}"), "other ");
}

#[test]
fn deep_and_large_documents_have_no_values() {
    let server = start(
        server(),
        "client_body_early_read 1; client_body_buffer_size 4m; client_max_body_size 4m; json_max_depth 2;
         json_set $x $request_body x;
         server { listen 127.0.0.1:{port}; location / { return 200 '[$x]'; } }",
    );
    assert_eq!(post(&server, "/", r#"{"x":1,"y":[2]}"#), "[1]");
    assert_eq!(post(&server, "/", r#"{"x":1,"y":[[2]]}"#), "[]");
    let large = format!("{{\"x\":1,\"y\":\"{}\"}}", "y".repeat(1 << 20));
    assert_eq!(post(&server, "/", &large), "[]");
    server.wait_error_log("json_set: document of 1048590 bytes is larger than 262144 bytes").unwrap();
}

#[test]
fn document_is_parsed_once_for_a_request() {
    // The source changes after its first use; all values are those of the first document.
    let server = start(
        server(),
        "json_set $a $source a; json_set $b $source b;
         server {
           listen 127.0.0.1:{port};
           location / {
             set $source '{\"a\":1,\"b\":2}'; set $first $a; set $source '{\"a\":3,\"b\":4}'; return 200 '$first $a $b';
           }
         }",
    );
    assert_eq!(page(&server, "/").1, "1 1 2");
}

#[test]
fn wrong_directives_are_refused() {
    for (wrong, message) in [
        ("json_set x $arg_a a;", "invalid variable name \"x\""),
        ("json_set $x arg_a a;", "invalid variable name \"arg_a\""),
        ("json_set $x $nothing a;", "unknown \"nothing\" variable"),
        ("json_set $x $arg_a '';", "empty json_set path"),
        ("json_set $x $arg_a $.a;", "invalid json_set path \"$.a\""),
        ("json_set $x $arg_a a[x];", "invalid json_set path \"a[x]\""),
        ("json_set $x $arg_a a; json_set $X $arg_b b;", "json_set variable \"X\" is already defined"),
        ("json_set $uri $arg_a a;", "the duplicate \"uri\" variable"),
        ("json_max_depth 0;", "value must be between 1 and 256"),
        ("json_max_depth 257;", "value must be between 1 and 256"),
        ("json_max_depth x;", "invalid number"),
        ("server { json_set $x $arg_a a; }", "\"json_set\" directive is not allowed here"),
    ] {
        let refused = refusal_of(&format!("http {{ {wrong} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(refused.contains(message), "{wrong}: {refused}");
    }
}
