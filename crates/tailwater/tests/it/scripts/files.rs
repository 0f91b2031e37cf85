//! `fs` and `js_fs_path`: files that scripts may use, and those that they may not.

use std::fs;
use std::os::unix::fs::symlink;

use tw_testkit::Server;

use super::scripted;
use crate::support::page;

/// A script whose function `run` answers with the result of the expression `code`, or with its exception.
const SCRIPT: &str = "
    import fs from 'fs';
    async function run(r) {
        let answer;
        try {
            answer = await (new Function('fs', `return ${r.args.code}`))(fs);
        } catch (e) {
            answer = `${e.name} ${e.code} ${e.syscall} ${e.message}`;
        }
        r.return(200, typeof answer === 'string' ? answer : JSON.stringify(answer) ?? 'undefined');
    }
    export default {run};";

/// A server with some files, which scripts may use by these directives.
fn start_with(directives: &str) -> Option<Server> {
    start_in("", directives)
}

/// Starts such a server with directives of the main context.
fn start_in(main: &str, directives: &str) -> Option<Server> {
    let builder =
        scripted(SCRIPT)?.file("data/a.txt", "text").file("data/b/c.txt", "inner").file("other.txt", "other");
    let conf = format!(
        "user root; {main} http {{ js_import main.js; {directives} server {{ listen 127.0.0.1:{{port}}; \
         error_log logs/error.log info; location / {{ js_content main.run; }} }} }}"
    );
    Some(builder.start(&conf).unwrap())
}

/// Result of an expression in the script.
fn run(server: &Server, code: &str) -> String {
    let escaped: String = code.bytes().map(|byte| format!("%{byte:02x}")).collect();
    page(server, &format!("/?code={escaped}")).1
}

#[test]
fn without_a_directive_no_file_may_be_used() {
    let Some(server) = start_with("") else { return };
    for code in
        ["fs.readFileSync('data/a.txt')", "fs.promises.readFile('data/a.txt')", "fs.statSync('/etc/passwd')"]
    {
        let answer = run(&server, code);
        let expected = "no \"js_fs_path\" names a directory with it";
        assert!(answer.starts_with("Error EACCES ") && answer.ends_with(expected), "{code}: {answer}");
    }
}

#[test]
fn files_of_a_directory_are_read() {
    let Some(server) = start_with("js_fs_path data;") else { return };
    for (code, expected) in [
        ("fs.readFileSync('data/a.txt', 'utf8')", "text"),
        ("fs.promises.readFile('data/b/../a.txt', {encoding: 'hex'})", "74657874"),
        ("fs.readFileSync('data/a.txt').length", "4"),
        ("fs.readdirSync('data').sort()", "[\"a.txt\",\"b\"]"),
        (
            "fs.readdirSync('data/', {withFileTypes: true}).map(e => [e.name, e.isDirectory()]).sort()",
            "[[\"a.txt\",false],[\"b\",true]]",
        ),
        ("(s => [s.size, s.isFile(), s.mtime instanceof Date])(fs.statSync('data/a.txt'))", "[4,true,true]"),
        ("fs.statSync('data/none', {throwIfNoEntry: false})", "undefined"),
        ("fs.accessSync('data/a.txt', fs.constants.R_OK)", "undefined"),
        ("fs.promises.access('data/none')", "Error ENOENT access No such file or directory"),
        ("fs.readFileSync('data')", "Error EISDIR open Is a directory"),
        (
            "(b => { const d = fs.openSync('data/a.txt'); const n = fs.readSync(d, b, 1, 3, 1); fs.closeSync(d); return [n, b.toString()]; })(Buffer.alloc(4, '-'))",
            "[3,\"-ext\"]",
        ),
        (
            "fs.promises.open('data/a.txt').then(async f => { const s = (await f.stat()).size; await f.close(); return s; })",
            "4",
        ),
        ("fs.fstatSync(99)", "Error EBADF fstat Bad file descriptor"),
    ] {
        assert_eq!(run(&server, code), expected, "{code}");
    }
    let path = run(&server, "fs.realpathSync('data/b')");
    assert!(path.starts_with('/') && path.ends_with("/data/b"), "{path}");
}

#[test]
fn paths_do_not_leave_their_directory() {
    let Some(server) = start_with("js_fs_path data;") else { return };
    let data = server.prefix().join("data");
    symlink("../other.txt", data.join("up")).unwrap();
    symlink("/etc/passwd", data.join("absolute")).unwrap();
    symlink("b/c.txt", data.join("inner")).unwrap();
    symlink("..", data.join("parent")).unwrap();
    assert_eq!(run(&server, "fs.readFileSync('data/inner', 'utf8')"), "inner");
    for path in
        ["data/up", "data/absolute", "data/parent/other.txt", "data/../other.txt", "data/b/../../other.txt"]
    {
        let answer = run(&server, &format!("fs.readFileSync('{path}')"));
        assert!(
            answer.starts_with("Error EACCES open ") && answer.contains("leads out of"),
            "{path}: {answer}"
        );
    }
    // A link itself may be looked at.
    assert_eq!(run(&server, "fs.lstatSync('data/absolute').isSymbolicLink()"), "true");
    let answer = run(&server, "fs.readFileSync('other.txt')");
    assert!(answer.contains("no \"js_fs_path\" names"), "{answer}");
}

#[test]
fn files_are_changed_only_with_write() {
    // The sandbox lets no process make symbolic links.
    let Some(server) = start_in("sandbox off;", "js_fs_path data; js_fs_path data/b write;") else { return };
    let changes = [
        "fs.writeFileSync('DIR/new', 'x')",
        "fs.promises.appendFile('DIR/c.txt', '!')",
        "fs.mkdirSync('DIR/made/deep', {recursive: true})",
        "fs.renameSync('DIR/new', 'DIR/made/moved')",
        "fs.symlinkSync('made/moved', 'DIR/link')",
        "fs.unlinkSync('DIR/link')",
        "(d => fs.writeSync(d, 'y', 0))(fs.openSync('DIR/made/moved', 'r+'))",
    ];
    for code in changes {
        let answer = run(&server, &code.replace("DIR", "data"));
        assert!(answer.contains("has no \"write\""), "{code}: {answer}");
    }
    for code in changes {
        let answer = run(&server, &code.replace("DIR", "data/b"));
        assert!(matches!(&*answer, "undefined" | "1"), "{code}: {answer}");
    }
    let inner = server.prefix().join("data/b");
    assert_eq!(fs::read_to_string(inner.join("c.txt")).unwrap(), "inner!");
    assert_eq!(fs::read_to_string(inner.join("made/moved")).unwrap(), "y");
    assert!(inner.join("made/deep").is_dir() && !inner.join("new").exists());
    let answer = run(&server, "fs.symlinkSync('/etc', 'data/b/etc')");
    assert!(answer.contains("must be a relative path"), "{answer}");
    let answer = run(&server, "fs.renameSync('data/b/c.txt', 'data/c.txt')");
    assert!(answer.contains("has no \"write\""), "{answer}");
    assert_eq!(run(&server, "fs.rmdirSync('data/b/made')"), "Error ENOTEMPTY rmdir Directory not empty");
    assert_eq!(run(&server, "fs.rmdirSync('data/b/made', {recursive: true})"), "undefined");
    assert!(!inner.join("made").exists());
}

#[test]
fn modules_read_files_while_they_are_loaded() {
    let script = "
        import fs from 'fs';
        const text = fs.readFileSync('data/a.txt', 'utf8');
        let refused = '';
        try { fs.writeFileSync('data/new', 'x'); } catch (e) { refused = e.name; }
        function content(r) { r.return(200, `${text} ${refused}`); }
        export default {content};";
    let Some(builder) = scripted(script) else { return };
    let conf = "user root; http { js_import main.js; js_fs_path data; \
         server { listen 127.0.0.1:{port}; location / { js_content main.content; } } }";
    let server = builder.file("data/a.txt", "text").start(conf).unwrap();
    assert_eq!(page(&server, "/").1, "text Error");
    let Some(builder) = scripted(script) else { return };
    let output = builder.arg("-t").run(conf).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("No such file or directory"), "{text}");
}

#[test]
fn limits_of_files_are_exceptions() {
    let Some(server) = start_with("js_fs_path data; js_memory 64m;") else { return };
    let large = fs::File::create(server.prefix().join("data/large")).unwrap();
    large.set_len((16 << 20) + 1).unwrap();
    assert_eq!(run(&server, "fs.readFileSync('data/large')"), "Error EFBIG open File too large");
    let code = "(() => { for (let n = 0; n < 100; n++) fs.openSync('data/a.txt'); })()";
    assert_eq!(run(&server, code), "Error EMFILE open Too many open files");
    // Another request has descriptors of its own.
    assert_eq!(run(&server, "fs.openSync('data/a.txt')"), "3");
}

#[test]
fn wrong_directives_are_refused() {
    for (directive, message) in [
        ("js_fs_path data read;", "invalid parameter \"read\""),
        ("js_fs_path;", "invalid number of arguments"),
    ] {
        let error = crate::support::refusal_of(&format!(
            "http {{ {directive} server {{ listen 127.0.0.1:{{port}}; }} }}"
        ));
        assert!(error.contains(message), "{error}");
    }
}
