//! `js_set`, `js_var` and `r.variables`.

use super::{scripted, start_scripted};
use crate::support::{get, page, request, start};

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
         limit_req_zone $name zone=names:64k rate=1r/m; \
         server { \
           listen 127.0.0.1:{port}; root html; \
           if ($deny) { return 403; } \
           location /return { return 200 $name; } \
           location /set { set $copy \"<$name>\"; return 200 $copy; } \
           location /mapped { return 200 $mapped; } location /maps { return 200 $twice; } \
           location /header { add_header X-Name $name; return 200 body; } \
           location /root { root html/$name; } \
           location /limited { limit_req zone=names; return 200 $name; } \
           location /log { access_log logs/script.log scripted; return 201 logged; } }",
    );
    assert_eq!(page(&server, "/return"), (200, "n7".to_owned()));
    assert_eq!(get(&server, "/return?deny=1").status, 403);
    assert_eq!(page(&server, "/set"), (200, "<n4>".to_owned()));
    assert_eq!(page(&server, "/mapped"), (200, "seven".to_owned()));
    assert_eq!(page(&server, "/maps"), (200, "OTHER".to_owned()));
    assert_eq!(get(&server, "/header").field("X-Name"), Some("n7"));
    assert_eq!(page(&server, "/root"), (200, "content".to_owned()));
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
            try { r.variables.unknown = 'x'; } catch (e) { text += e.message; }
            r.return(200, `${r.variables.own} ${r.variables.limit_rate} ${text}`);
        }
        function set(r) { r.variables.own = 'by js_set'; return 'x'; }
        export default {read, write, set};";
    let locations = "js_var $own \"initial $arg_x\"; js_set $set main.set; \
         location ~ /read/(.*) { js_content main.read; } location /write { js_content main.write; } \
         location /own { return 200 $own; } location /set { return 200 \"$set $own\"; }";
    let Some(server) = start_scripted(script, locations) else { return };
    let read = request(&server, "GET /read/captured?x=1", &["Cookie: c=d"]);
    assert_eq!(read.text(), "x=1|1|d||initial 1|captured");
    let (status, written_text) = page(&server, "/write");
    assert_eq!(
        (status, written_text.as_str()),
        (200, "changed 1000 variable is not writable variable not found")
    );
    assert_eq!(page(&server, "/own?x=2").1, "initial 2");
    assert_eq!(page(&server, "/set").1, "x by js_set");
}

#[test]
fn script_variable_that_a_script_reads_is_computed_by_its_process() {
    let script = "
        function inner(r) { return `inner of ${r.uri}`; }
        function content(r) { r.return(200, `${r.variables.inner}, ${r.variables.mapped}`); }
        function itself(r) { return r.variables.itself; }
        export default {inner, content, itself};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder,
        "js_import main.js; js_set $inner main.inner; js_set $itself main.itself; \
         map $inner $mapped { default 'mapped'; ~inner 'found'; } \
         server { listen 127.0.0.1:{port}; location /content { js_content main.content; } \
           location /itself { return 200 <$itself>; } }",
    );
    assert_eq!(page(&server, "/content"), (200, "inner of /content, found".to_owned()));
    assert_eq!(get(&server, "/itself").status, 200);
}
