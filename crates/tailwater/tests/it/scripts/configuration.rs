//! Directives of scripts: what is refused, what is compiled, what is imported.

use super::{scripted, start_scripted};
use crate::support::{page, start};

#[test]
fn syntax_error_is_reported_with_file_line_and_mark() {
    let Some(builder) = scripted("function fine() {}\nlet broken = (;\nexport default {fine};\n") else {
        return;
    };
    let output = builder
        .arg("-t")
        .run("http { js_import main.js; server { listen 127.0.0.1:{port}; location / { js_content main.fine; } } }")
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("SyntaxError") && text.contains("main.js:2"), "{text}");
    assert!(text.contains("let broken = (;\n") && text.contains('^'), "{text}");
}

#[test]
fn modules_import_others_from_several_directories() {
    let main = "import own from './lib/own.js'; import other from 'other.js'; import * as named from 'lib/named.js';\n\
        function content(r) { r.return(200, [own.text, other.text, named.text].join(' ')); }\n\
        export default {content};";
    let Some(builder) = scripted(main) else { return };
    let builder = builder
        .file("conf/lib/own.js", "import {text} from './named.js'; export default {text: `own ${text}`};")
        .file("conf/lib/named.js", "export const text = 'named';")
        .file("js/other.js", "export default {text: 'other'};");
    let server = start(
        builder,
        "js_path ../js; js_import main.js; js_import again from main.js; \
         server { listen 127.0.0.1:{port}; location / { js_content main.content; } \
           location /again { js_content again.content; } }",
    );
    assert_eq!(page(&server, "/").1, "own named other named");
    assert_eq!(page(&server, "/again").1, "own named other named");
}

#[test]
fn directives_that_cannot_be_used_are_refused() {
    let cases = [
        ("js_import none.js;", "", "module \"none.js\" is not found"),
        ("js_import main.mjs;", "", "cannot extract export name from file path \"main.mjs\""),
        ("js_import 1a from main.js;", "", "cannot start with \"1\" in export name \"1a\""),
        ("js_import a-b from main.js;", "", "invalid character \"-\" in export name \"a-b\""),
        ("js_engine v8;", "", "invalid value \"v8\""),
        (
            "js_import main.js; js_set $a main.a; js_set $a main.b;",
            "",
            "is redeclared with different function name",
        ),
        ("js_import main.js; js_set $a main.a twice;", "", "unrecognized flag \"twice\""),
        ("js_import main.js; js_set a main.a;", "", "invalid variable name \"a\""),
        ("", "js_content main.content;", "no imports defined for \"js_content\" \"main.content\""),
        ("", "js_body_filter main.filter;", "no imports defined for \"js_body_filter\" \"main.filter\""),
        ("js_processes 0;", "", "must be between 1 and 256"),
        ("js_program /nowhere/scripts; js_import main.js;", "", "needs the program \"/nowhere/scripts\""),
    ];
    for (http, location, message) in cases {
        let Some(builder) = scripted("export default {};") else { return };
        let conf =
            format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; location / {{ {location} }} }} }}");
        let output = builder.arg("-t").run(&conf).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(message), "{http} {location}: {text}");
    }
}

#[test]
fn old_engine_is_accepted_with_a_notice() {
    let Some(builder) = scripted("export default {};") else { return };
    let output = builder
        .arg("-t")
        .run("http { js_engine njs; js_import main.js; server { listen 127.0.0.1:{port}; } }")
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("scripts run on QuickJS"), "{text}");
}

#[test]
fn scripts_need_a_master_process() {
    let Some(builder) = scripted("export default {};") else { return };
    let output = builder
        .in_one_process()
        .arg("-t")
        .run("http { js_import main.js; server { listen 127.0.0.1:{port}; } }")
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("scripts need \"master_process on\""));
}

#[test]
fn inner_blocks_add_modules_to_those_around() {
    let locations = "location /outer { js_content main.content; } \
         location /inner { js_import inner from inner.js; \
           location /inner/own { js_content inner.content; } location /inner/outer { js_content main.content; } }";
    let Some(builder) = scripted("function content(r) { r.return(200, 'main'); } export default {content};")
    else {
        return;
    };
    let builder = builder
        .file("conf/inner.js", "function content(r) { r.return(200, 'inner'); } export default {content};");
    let server =
        start(builder, &format!("js_import main.js; server {{ listen 127.0.0.1:{{port}}; {locations} }}"));
    assert_eq!(page(&server, "/outer").1, "main");
    assert_eq!(page(&server, "/inner/own").1, "inner");
    assert_eq!(page(&server, "/inner/outer").1, "main");
}

#[test]
fn scripts_see_facts_about_the_server() {
    let script = "
        function facts(r) {
            r.return(200, [ngx.version, typeof ngx.prefix, ngx.worker_id, typeof process.pid, process.env.TZ ?? 'none'].join(' '));
        }
        export default {facts};";
    let Some(server) = start_scripted(script, "location / { js_content main.facts; }") else { return };
    let (_, text) = page(&server, "/");
    assert!(text.contains(" string 0 number "), "{text}");
}
