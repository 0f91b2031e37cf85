//! `js_set`, `js_var` and `r.variables`.

use std::fs;

use tw_testkit::wait;

use super::{scripted, start_scripted};
use crate::support::{get, page, request, start, start_as_we_are};

const SCRIPT: &str = "
    function name(r) { return 'n' + r.uri.length; }
    function deny(r) { return r.args.deny ? 1 : 0; }
    function status(r) { return 'status ' + r.variables.status; }
    function fails(r) { throw new Error('no value'); }
    let count = 0;
    function counted(r) { count += 1; return count; }
    export default {name, deny, status, fails, counted};";

#[test]
fn script_variable_is_computed_before_each_kind_of_reader() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let server = start(
        builder.file("html/n5/root", "content"),
        "js_import main.js; \
         js_set $name main.name; js_set $deny main.deny; js_set $status_text main.status; \
         js_set $failing main.fails; \
         map $name $mapped { n7 seven; default other; } map $mapped $twice { seven SEVEN; default OTHER; } \
         log_format scripted '$name $status_text <$failing>'; \
         limit_req_zone $name zone=names:64k rate=1r/m; secure_link $arg_sum; secure_link_md5 \"$uri$name\"; \
         server { \
           listen 127.0.0.1:{port}; root html; \
           if ($deny) { return 403; } \
           location /return { return 200 $name; } \
           location /set { set $copy \"<$name>\"; return 200 $copy; } \
           location /mapped { return 200 $mapped; } location /maps { return 200 $twice; } \
           location /header { add_header X-Name $name; return 200 body; } \
           location /root { root html/$name; } \
           location /limited { limit_req zone=names; return 200 $name; } \
           location /secure { if ($secure_link = '') { return 403; } return 200 \"secure\"; } \
           location /log { access_log logs/script.log scripted; return 201 logged; } }",
    );
    assert_eq!(page(&server, "/return"), (200, "n7".to_owned()));
    assert_eq!(get(&server, "/return?deny=1").status, 403);
    assert_eq!(page(&server, "/set"), (200, "<n4>".to_owned()));
    assert_eq!(page(&server, "/mapped"), (200, "seven".to_owned()));
    assert_eq!(page(&server, "/maps"), (200, "OTHER".to_owned()));
    assert_eq!(get(&server, "/header").field("X-Name"), Some("n7"));
    assert_eq!(page(&server, "/root"), (200, "content".to_owned()));
    // The MD5 digest of `/securen7` in base64url.
    assert_eq!(page(&server, "/secure?sum=7DSr9plSXUzZVJ6M4TrPTw").1, "secure");
    assert_eq!(get(&server, "/secure").status, 403);
    assert_eq!(get(&server, "/log").status, 201);
    assert_eq!(server.log("logs/script.log", 1).unwrap(), ["n4 status 201 <->"]);
    server.wait_error_log("no value").unwrap();
}

#[test]
fn script_variable_is_computed_once_unless_it_is_not_cached() {
    let locations = "js_context_reuse 0; js_set $once main.counted; js_set $each main.counted nocache; \
         location /once { set $a $once; add_header X-A \"$a $once\"; return 200 $once; } \
         location /each { set $a $each; add_header X-A \"$a\"; add_header X-B $each; return 200 $a; }";
    let Some(server) = start_scripted(SCRIPT, locations) else { return };
    let once = get(&server, "/once");
    assert_eq!((once.text().as_str(), once.field("X-A")), ("1", Some("1 1")));
    let each = get(&server, "/each");
    assert_eq!((each.text().as_str(), each.field("X-A"), each.field("X-B")), ("1", Some("1"), Some("2")));
}

#[test]
fn scripts_read_and_change_variables() {
    let script = "
        function read(r) {
            const v = r.variables;
            r.return(200, [v.args, v.arg_x, v.cookie_c, v.none, v.own, v[1]].join('|'));
        }
        function write(r) {
            r.variables.own = 'changed';
            r.variables.limit_rate = '1000';
            let text = '';
            try { r.variables.uri = 'x'; } catch (e) { text += e.message + ' '; }
            try { r.variables.unknown = 'x'; } catch (e) { text += `${e}`; }
            r.return(200, `${r.variables.own} ${r.variables.limit_rate} ${text}`);
        }
        function set(r) { r.variables.own = 'by js_set'; return 'x'; }
        function names(r) { r.return(200, `${r.jsVarNames()} ${r.jsVarNames('ot')}`); }
        export default {read, write, set, names};";
    let locations = "js_var $own \"initial $arg_x\"; js_var $other; js_set $set main.set; \
         location /names { js_content main.names; } \
         location ~ /read/(.*) { js_content main.read; } location /write { js_content main.write; } \
         location /own { return 200 $own; } location /set { return 200 \"$set $own\"; }";
    let Some(server) = start_scripted(script, locations) else { return };
    let read = request(&server, "GET /read/captured?x=1", &["Cookie: c=d"]);
    assert_eq!(read.text(), "x=1|1|d||initial 1|captured");
    let (status, written_text) = page(&server, "/write");
    assert_eq!(
        (status, written_text.as_str()),
        (200, "changed 1000 variable is not writable TypeError: variable not found")
    );
    assert_eq!(page(&server, "/names").1, "own,other other");
    assert_eq!(page(&server, "/own?x=2").1, "initial 2");
    assert_eq!(page(&server, "/set").1, "x by js_set");
}

#[test]
fn script_variable_that_a_script_reads_is_computed_by_its_process() {
    let script = "
        function inner(r) { return `inner of ${r.uri}`; }
        function content(r) { r.return(200, `${r.variables.inner}, ${r.variables.mapped}`); }
        function itself(r) { return r.variables.itself; }
        async function promised(r) { await null; return `promised to ${r.uri}`; }
        async function refused(r) { await null; throw new Error('a variable fails'); }
        function waits(r) { setTimeout(() => {}, 1); return 'x'; }
        function read(r) { r.return(200, r.variables.promised); }
        export default {inner, content, itself, promised, refused, waits, read};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder,
        "js_import main.js; js_set $inner main.inner; js_set $itself main.itself; \
         map $inner $mapped { default 'mapped'; ~inner 'found'; } \
         js_set $promised main.promised; js_set $refused main.refused; js_set $waits main.waits; \
         server { listen 127.0.0.1:{port}; error_log logs/error.log info; location /content { js_content main.content; } \
           location /itself { return 200 <$itself>; } location /promised { return 200 $promised; } \
           location /refused { return 200 <$refused>; } location /waits { return 200 <$waits>; } \
           location /read { js_content main.read; } }",
    );
    assert_eq!(page(&server, "/promised").1, "promised to /promised");
    assert_eq!(page(&server, "/read").1, "promised to /read");
    assert_eq!(page(&server, "/refused").1, "<>");
    server.wait_error_log("js exception: Error: a variable fails").unwrap();
    assert_eq!(page(&server, "/waits").1, "<>");
    server.wait_error_log("async operation inside \"main.waits\" variable handler").unwrap();
    assert_eq!(page(&server, "/content"), (200, "inner of /content, found".to_owned()));
    assert_eq!(get(&server, "/itself").status, 200);
}

#[test]
fn variable_of_keyval_changes_its_pair() {
    let script = "
        function count(r) {
            r.variables.seen = Number(r.variables.seen || 0) + 1;
            r.return(200, r.variables.seen);
        }
        function borrow(r) {
            const text = [];
            try { r.variables.request_id = 'short'; } catch (e) { text.push(e.message); }
            r.variables.request_id = '0123456789abcdef0123456789ABCDEF';
            text.push(r.variables.request_id);
            r.return(200, text.join());
        }
        export default {count, borrow};";
    let Some(builder) = scripted(script) else { return };
    let server = start_as_we_are(
        builder,
        "js_import main.js; keyval_zone zone=seen:64k state=logs/seen.json; keyval $arg_who $seen zone=seen; \
         server { listen 127.0.0.1:{port}; location / { js_content main.count; } location /seen { return 200 $seen; } \
           location /borrow { js_content main.borrow; } }",
    );
    assert_eq!(
        page(&server, "/borrow").1,
        "request_id has 32 hexadecimal digits,0123456789abcdef0123456789abcdef"
    );
    assert_eq!(page(&server, "/?who=a").1, "1");
    assert_eq!(page(&server, "/?who=b").1, "1");
    assert_eq!(page(&server, "/?who=a").1, "2");
    assert_eq!(page(&server, "/seen?who=a").1, "2");
    let state = server.prefix().join("logs/seen.json");
    let saved = || fs::read_to_string(&state).is_ok_and(|text| text.contains("\"2\""));
    assert!(wait::until(wait::TIMEOUT, saved), "the state is not saved");
}
