//! The request object: values, operations and effects.

use tw_script::{
    ByteBuf, CallKind, Effect, FetchResponse, Field, HttpSnapshot, LogLevel, Operation, OperationError,
    Outcome, Reply, ResponseHead, Snapshot, Subject, Subresponse,
};

use crate::host::{Ended, Host, no_answer, request, script, text, value};

/// Text of `r.return(200, JSON.stringify(…))` of this expression.
fn evaluate(expression: &str) -> String {
    script(&format!("export default {{ f(r) {{ r.return(200, JSON.stringify({expression})); }} }}"))
        .content("test.f")
        .text()
}

#[test]
fn request_has_the_values_of_its_snapshot() {
    for (expression, expected) in [
        (
            "[r.method, r.uri, r.httpVersion, r.remoteAddress, r.internal]",
            r#"["POST","/a b","1.1","127.0.0.1",false]"#,
        ),
        ("r.requestLine", r#""POST /a%20b?a=1 HTTP/1.1""#),
        ("r.args", r#"{"a":"1","b":["2","4"],"A":"3","B":"two words"}"#),
        ("r.headersIn['x-FOO']", r#""one, two""#),
        ("[r.headersIn.cookie, r.headersIn['user-agent']]", r#"["a=1; b=2","first"]"#),
        ("[r.headersIn.missing === undefined, 'Host' in r.headersIn]", "[true,true]"),
        ("Object.keys(r.headersIn)", r#"["Host","X-Foo","Cookie","User-Agent"]"#),
        ("r.rawHeadersIn.slice(1, 3)", r#"[["X-Foo","one"],["x-foo","two"]]"#),
        ("r.parent === undefined", "true"),
    ] {
        assert_eq!(evaluate(expression), expected, "{expression}");
    }
}

#[test]
fn variables_are_operations() {
    let mut host = script(
        "export default { f(r) { r.variables.b = r.variables.a + '!'; r.return(200, r.rawVariables.a.toString('hex')); } }",
    );
    let ended = host.run(CallKind::Content, "test.f", &mut |operation| match operation {
        Operation::Variable { subject: Subject::Main, .. } => value("xy"),
        Operation::SetVariable { name, value, .. } => {
            assert_eq!((name.as_slice(), value.as_slice()), (&b"b"[..], &b"xy!"[..]));
            Ok(Reply::Done)
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(ended.text(), "7879");
    assert_eq!(ended.operations.len(), 3);
}

#[test]
fn failed_operation_is_an_exception_with_a_place() {
    let source = "export default { f(r) {\n  r.variables.a = 1;\n} }";
    let ended = script(source).run(CallKind::Content, "test.f", &mut |_| {
        Err(OperationError::Type("variable not found".to_owned()))
    });
    let exception = ended.exception();
    assert_eq!(exception.message, "TypeError: variable not found");
    assert_eq!((exception.file.as_str(), exception.function.as_str()), ("/js/test.js", "f"));
    assert_eq!(exception.line, 2);
    assert!(!exception.stack.contains("tailwater:"), "{}", exception.stack);
}

#[test]
fn response_head_is_asked_for_once_and_changed_here() {
    let source = "export default { f(r) {
        r.headersOut['X-A'] = ['1', '2']; r.headersOut['Set-Cookie'] = ['a', 'b']; delete r.headersOut.server; r.status = 201;
        r.return(200, JSON.stringify([r.headersOut['x-a'], r.headersOut['set-cookie'], r.headersOut.server === undefined, r.status]));
    }, g(r) { r.headersOut['Content-Length'] = 'x'; }, h(r) { r.headersOut['a b'] = 'x'; }, i(r) { r.headersOut.a = 'x\\r\\nb'; } }";
    let head = ResponseHead { status: 200, fields: vec![Field::new("Server", "t")] };
    let mut host = script(source);
    let ended = host.run(CallKind::Content, "test.f", &mut |operation| match operation {
        Operation::ResponseHead => Ok(Reply::ResponseHead(head.clone())),
        other => panic!("{other:?}"),
    });
    assert_eq!(ended.operations, [Operation::ResponseHead]);
    // Nothing of the changes is known here, because the head was asked for after them: the answer of a server has them.
    assert_eq!(ended.text(), r#"[null,null,false,200]"#);
    assert_eq!(ended.effects.len(), 5);
    for (name, message) in
        [("test.g", "positive integer"), ("test.h", "header name"), ("test.i", "header value")]
    {
        assert!(host.content(name).exception().message.contains(message), "{name}");
    }
}

#[test]
fn header_filter_changes_the_head_that_it_got() {
    let mut host = script(
        "export default { f(r) { delete r.headersOut['Content-Length']; r.headersOut.foo = r.headersOut.A + r.status; } }",
    );
    let Snapshot::Http(mut snapshot) = request() else { panic!() };
    let fields = vec![Field::new("Content-Length", "5"), Field::new("a", "b")];
    snapshot.response = Some(ResponseHead { status: 206, fields });
    let call = host.start(CallKind::HeaderFilter, "test.f", 0, Snapshot::Http(snapshot));
    let ended = host.finish(call, &mut no_answer);
    let change = |name: &str, values: &[&str]| Effect::SetResponseField {
        name: name.as_bytes().to_vec().into(),
        values: values.iter().map(|value| value.as_bytes().to_vec().into()).collect(),
    };
    assert_eq!(ended.effects, [change("Content-Length", &[]), change("foo", &["b206"])]);
}

#[test]
fn return_checks_its_status() {
    let source = "export default { a(r) { r.return(1000); }, b(r) { r.return(301, 'x\\ny'); }, c(r) { r.return(404); }, d(r) { r.return(204); } }";
    let mut host = script(source);
    assert_eq!(host.content("test.a").exception().message, "RangeError: code is out of range");
    assert_eq!(host.content("test.b").exception().message, "TypeError: invalid header value");
    assert_eq!(host.content("test.c").effects, [Effect::Return { status: 404, text: None }]);
    assert_eq!(host.content("test.d").effects, [Effect::Return { status: 204, text: Some(ByteBuf::new()) }]);
}

#[test]
fn promises_of_operations_are_settled() {
    let source = "export default { async f(r) {
        const [a, b] = await Promise.all([ngx.fetch('http://a/', { method: 'POST', body: 'x', verify: false }), r.subrequest('/b', { args: 'c=d' })]);
        r.return(200, JSON.stringify([a.status, a.headers.get('k'), await a.text(), b.status, b.responseText, b.uri, b.parent === r,
            b.headersOut.q, b.variables.v]));
    } }";
    let ended = script(source).run(CallKind::Content, "test.f", &mut |operation| match operation {
        Operation::Fetch(fetch) => {
            assert_eq!((fetch.method.as_slice(), fetch.is_verified), (&b"POST"[..], Some(false)));
            Ok(Reply::Fetched(Box::new(FetchResponse {
                status: 201,
                reason: ByteBuf::from(b"Created".to_vec()),
                fields: vec![Field::new("K", "v")],
                body: ByteBuf::from(b"body".to_vec()),
            })))
        }
        Operation::Subrequest { uri, args, is_detached: false, .. } => {
            assert_eq!((uri.as_slice(), args.as_slice()), (&b"/b"[..], &b"c=d"[..]));
            let fields = vec![Field::new("Q", "w")];
            let response = Some(ResponseHead { status: 404, fields });
            let snapshot = HttpSnapshot { uri: uri.clone(), response, ..HttpSnapshot::default() };
            Ok(Reply::Subresponse(Box::new(Subresponse {
                snapshot,
                body: Some(ByteBuf::from(b"sub".to_vec())),
            })))
        }
        Operation::Variable { subject: Subject::Subrequest(_), .. } => value("of the subrequest"),
        other => panic!("{other:?}"),
    });
    assert_eq!(ended.text(), r#"[201,"v","body",404,"sub","/b",true,"w","of the subrequest"]"#);
    assert_eq!(ended.outcome, Some(Outcome::Value(None)));
}

#[test]
fn request_bodies_have_all_forms() {
    let source = "export default { async f(r) { const a = await r.readRequestText(); const b = await r.readRequestArrayBuffer();
            r.return(200, a + b.byteLength); },
        async j(r) { r.return(200, (await r.readRequestJSON()).x); },
        g(r) { r.return(200, r.requestText + r.requestBuffer.length); },
        async h(r) { r.headersIn; const form = await r.readRequestForm(); r.return(200, JSON.stringify([form.get('a'), form.getAll('b'), form.has('c'),
            form.hasFiles()])); } }";
    let mut host = script(source);
    let body = |text: &str| {
        let text = text.to_owned();
        move |operation: &Operation| match operation {
            Operation::ReadRequestBody | Operation::RequestBody => value(&text),
            other => panic!("{other:?}"),
        }
    };
    let ended = host.run(CallKind::Content, "test.f", &mut body("héllo"));
    assert_eq!((ended.text().as_str(), ended.operations.len()), ("héllo6", 1));
    assert_eq!(host.run(CallKind::Content, "test.j", &mut body("{\"x\": 7}")).text(), "7");
    assert_eq!(host.run(CallKind::Content, "test.g", &mut body("ab")).text(), "ab2");
    let form = |host: &mut Host, kind: &str, text: &str| -> Ended {
        let Snapshot::Http(mut snapshot) = request() else { panic!() };
        snapshot.fields.push(Field::new("Content-Type", kind));
        let call = host.start(CallKind::Content, "test.h", 0, Snapshot::Http(snapshot));
        host.finish(call, &mut body(text))
    };
    let ended = form(&mut host, "application/x-www-form-urlencoded", "a=1+2&b=x&b=%C3%A9");
    assert_eq!(ended.text(), r#"["1 2",["x","é"],false,false]"#);
    let multipart = "--X\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\né\r\n--X\r\ncontent-disposition: form-data; name=b; \
        filename=\"f.txt\"\r\nContent-Type: text/plain\r\n\r\nsecret\r\n--X--\r\n";
    let ended = form(&mut host, "multipart/form-data; boundary=X", multipart);
    assert_eq!(ended.text(), r#"["é",[{"name":"f.txt"}],false,true]"#);
    let part = |head: &str| format!("--X\r\n{head}\r\n\r\nv\r\n--X--");
    for (kind, body, message) in [
        (
            "multipart/form-data; boundary=X",
            "--X\r\nnothing".to_owned(),
            "missing multipart header separator",
        ),
        ("multipart/form-data; boundary=X", "nothing".to_owned(), "malformed multipart body"),
        ("multipart/form-data; boundary=X", "--Xjunk".to_owned(), "malformed multipart boundary"),
        ("multipart/form-data; boundary=X", part("A: b"), "missing Content-Disposition header"),
        (
            "multipart/form-data; boundary=X",
            part("Content-Disposition: file; name=a"),
            "unsupported disposition type",
        ),
        (
            "multipart/form-data; boundary=X",
            part("Content-Disposition: form-data; name=\"a"),
            "unterminated quoted parameter",
        ),
        (
            "multipart/form-data; boundary=X",
            part("Content-Disposition: form-data; name=a; name=b"),
            "duplicate name parameter",
        ),
        (
            "multipart/form-data; boundary=X",
            part("Content-Disposition: form-data; name=a b"),
            "malformed Content-Disposition",
        ),
        (
            "multipart/form-data; boundary=X",
            "--X\r\nContent-Disposition: form-data; name=a\r\n\r\nv".to_owned(),
            "truncated multipart body",
        ),
        ("multipart/form-data", String::new(), "multipart boundary is required"),
        ("multipart/form-data; boundary=X; boundary=Y", String::new(), "duplicate boundary parameter"),
        ("text/plain", String::new(), "unsupported content type"),
        ("", String::new(), "request content type is required"),
        ("application/x-www-form-urlencoded", "a=%4".to_owned(), "malformed percent escape"),
        ("application/x-www-form-urlencoded", "a&".repeat(129), "maxKeys limit exceeded"),
    ] {
        let ended = form(&mut host, kind, &body);
        assert_eq!(ended.exception().message, format!("TypeError: {message}"), "{kind}: {body}");
    }
}

#[test]
fn log_lines_have_levels() {
    let source = "export default { f(r) { r.log('a'); r.warn('b'); r.error(Buffer.from('c')); ngx.log(ngx.ERR, 'd'); console.log('e', { x: 1 });
        console.error(undefined); } }";
    let ended = script(source).content("test.f");
    let level = |effect: &Effect| match effect {
        Effect::Log { level, .. } => Some(*level),
        _ => None,
    };
    use LogLevel::{Error, Info, Warn};
    assert_eq!(
        ended.effects.iter().filter_map(level).collect::<Vec<_>>(),
        [Info, Warn, Error, Error, Info, Error]
    );
    assert_eq!(ended.log(), ["a", "b", "c", "d", "e {x:1}", "undefined"]);
}

#[test]
fn dictionaries_and_files_are_operations() {
    use tw_script::{DictionaryCommand, DictionaryValue, FileCommand, FileError, FileValue};
    let source = "import fs from 'fs'; export default { d(r) { const d = ngx.shared.numbers; r.return(200, JSON.stringify([d.incr('a', 2, 5), d.get('x'),
            d.items(2), d.set('q', 1) === d])); },
        full() { ngx.shared.strings.set('a', 'b'); },
        async f(r) { r.return(200, fs.readFileSync('/x').toString('hex') + await fs.promises.readFile('/x', 'utf8')); },
        e(r) { try { fs.statSync('/no'); } catch (e) { r.return(200, [e.code, e.errno, e.path, e.message].join()); } },
        none(r) { r.return(200, String(fs.statSync('/no', { throwIfNoEntry: false }))); } }";
    let mut host = script(source);
    let ended = host.run(CallKind::Content, "test.d", &mut |operation| {
        let Operation::Dictionary { name, command } = operation else { panic!() };
        assert_eq!(name, "numbers");
        Ok(Reply::Dictionary(match command {
            DictionaryCommand::Incr { delta, init, .. } => DictionaryValue::Number(delta + init),
            DictionaryCommand::Items { count_max: 2 } => {
                DictionaryValue::Numbers(vec![(ByteBuf::from(b"k".to_vec()), 1.5)])
            }
            _ => DictionaryValue::None,
        }))
    });
    assert_eq!(ended.text(), r#"[7,null,[["k",1.5]],true]"#);
    let ended = host.run(CallKind::Content, "test.full", &mut |_| {
        Err(OperationError::SharedMemory("no space".to_owned()))
    });
    assert_eq!(ended.exception().message, "SharedMemoryError: no space");
    let ended = host.run(CallKind::Content, "test.f", &mut |operation| {
        let Operation::File(FileCommand::Read { path, .. }) = operation else { panic!() };
        assert_eq!(path.as_slice(), b"/x");
        Ok(Reply::File(FileValue::Bytes(ByteBuf::from(b"hi".to_vec()))))
    });
    assert_eq!(ended.text(), "6869hi");
    let mut missing = |_: &Operation| {
        Err(OperationError::File(FileError {
            errno: 2,
            code: "ENOENT".to_owned(),
            message: "No such file or directory".to_owned(),
            syscall: "stat".to_owned(),
            path: ByteBuf::from(b"/no".to_vec()),
        }))
    };
    let ended = host.run(CallKind::Content, "test.e", &mut missing);
    assert_eq!(ended.text(), "ENOENT,2,/no,No such file or directory");
    assert_eq!(host.run(CallKind::Content, "test.none", &mut missing).text(), "undefined");
}

#[test]
fn arguments_follow_a_redirect() {
    let mut host = script("export default { f(r) { return r.args.a; } }");
    for (args, expected) in [("a=1", "1"), ("a=2", "2")] {
        let Snapshot::Http(mut snapshot) = request() else { panic!() };
        snapshot.args = args.as_bytes().to_vec().into();
        let call = host.start(CallKind::Set, "test.f", 4, Snapshot::Http(snapshot));
        assert_eq!(host.finish(call, &mut no_answer).outcome, text(expected));
    }
}
