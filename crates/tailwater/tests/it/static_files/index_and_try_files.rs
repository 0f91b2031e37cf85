//! `index` and `try_files` in every kind of location, in one table of responses that nginx gives as well.

use crate::support::{get, server, start};

/// Files and what is in them.
const FILES: &[(&str, &str)] = &[
    ("html/index.html", "root index $uri"),
    ("html/a", "a"),
    ("html/a.html", "a.html"),
    ("html/b.html", "b"),
    ("html/dir/index.html", "dir index"),
    ("html/dir/x", "dir x"),
    ("html/empty/keep", "k"),
    ("html/dd/index.html/deep", "deep"),
    ("html/dd/second.html", "second"),
    ("html/abs.html", "abs"),
    ("html/only.php", "php"),
    ("html/p/index.php", "ip"),
    ("html/with space", "sp"),
    ("html/al/a", "html al a"),
    ("html/al/index.html", "html al index"),
    ("html/fallback", "fb"),
    ("html/host/localhost.html", "lh"),
    ("html/arg/x/index.html", "argx"),
    ("files/a", "f a"),
    ("files/index.html", "f index"),
    ("files/sub/index.html", "f sub"),
    ("files/sub/y", "f y"),
    ("files/b/c", "f bc"),
    ("files/none/keep", "k"),
    ("files/fallback", "f fb"),
    ("html/sub/y", "html sub y"),
    ("html/re/a", "html re a"),
    ("html/x.html", "x.html"),
    ("html/i/first", "first"),
    ("html/i/second", "second"),
];

const LOCATIONS: &str = r#"
    location /i/ { index none first second; }
    location /i2/ { alias html/i/; index none second first; }
    location /iabs/ { alias html/empty/; index none /abs.html; }
    location /iabs1/ { alias html/nodir/; index /abs.html; }
    location /iabs2/ { alias html/empty/; index none /dir/; }
    location /iabsn/ { alias html/empty/; index none /missing.html; }
    location /iabsq/ { alias html/empty/; index /abs.html?x; }
    location /ivar/ { alias html/host/; index $host.html; }
    location /ivar2/ { alias html/arg/; index $arg_f; }
    location /ivarabs/ { alias html/host/; index $arg_f; }
    location /dd/ { index index.html second.html; }
    location /nest/ { alias html/; index dir/index.html; }
    location /up/ { alias html/dir/; index ../a; }
    location /php/ { alias html/p/; index index.php; }
    location ~ \.php$ { return 200 "php $uri $args"; }
    location ~ ^/ri/(.*)$ { alias files/$1; }
    location ~ ^/ri2/(?<n>.*)$ { alias files/$n; index none index.html; }
    location /fals/ { alias files/; }
    location /indir/ { alias html/dir/; location /indir/index.html { return 200 "inner $uri"; } }
    location /iint/ { alias html/dir/; location = /iint/index.html { internal; return 200 internal; } }
    location = /exact/ { alias html/dir/; }
    location /dirx/ { alias html/dir/; index index.html; error_page 403 /fallback; }
    location /e403/ { alias html/empty/; error_page 403 =200 /fallback; }
    location /e404/ { alias html/nodir/; error_page 404 =200 /fallback?q; }
    location /t1 { try_files $uri $uri.html $uri/ /fallback?u=$uri&a=$args; }
    location /t2/ { alias html/; try_files $uri $uri.html $uri/ =418; }
    location /t3 { alias files; try_files $uri $uri/ =418; }
    location /t4/ { alias files/; try_files $uri $uri/ /t1; }
    location /t5/ { alias files/; try_files $uri @n; }
    location @n { return 200 "named $uri|$args"; }
    location @alias { root files; }
    location ~ ^/tr/(.*)$ { try_files /$1 /$1.html /$1/ =404; }
    location ~ ^/ta/(.*)$ { alias files/; try_files $1 $1/ =404; }
    location ~ ^/tc/(.*)$ { alias files; try_files /$1 /$1/ @n; }
    location ~ ^/td/(.*)$ { alias files/$1; try_files $uri @n; }
    location /te/ { try_files $arg_f $arg_g/ $arg_h; }
    location /tf/ { try_files /a/ /dir/ =404; }
    location /tg/ { try_files /dir /a =404; }
    location /th/ { try_files /dir/ =404; index x; }
    location /tk/ { try_files /none =301; }
    location /tm/ { try_files /none nolead; }
    location /tn/ { try_files /none http://other/x; }
    location /to/ { try_files /none /dir; }
    location /tp/ { try_files /none /dir/; }
    location /tq/ { try_files /none /only.php?a=b; }
    location /tr2/ { try_files /none "/with space"; }
    location /ts/ { try_files "/with space" =404; }
    location /tt/ { try_files /only.php =404; }
    location /tu/ { error_page 404 /fallback; try_files /none =404; }
    location /tv/ { error_page 404 = @n; try_files /none =404; }
    location /tw/ { try_files /../a =404; }
    location /tx/ { if ($arg_i) { set $z 1; } try_files /a =404; }
    location /ty/ { if ($arg_i) { add_header X-I y; } try_files $uri /abs.html; }
    location /tz/ { set $v /b.html; try_files $v =404; }
    location /ua/ { try_files /dir/../a =404; }
    location /ub/ { try_files $uri $uri/index.html =404; alias html/; }
    location /uc/ { root files; try_files $uri /uc2$uri; }
    location /uc2/ { return 200 "uc2 $uri $args"; }
    location /ud/ { try_files /none @alias; }
    location = /ue { try_files /a =404; }
    location ^~ /uf/ { try_files $uri.html /a; }
    location /ug/ { internal; try_files /a =404; }
    location /uh/ { try_files /none /ug/x; }
    location /ui/ { return 200 early; try_files /a =404; }
    location /uj/ { rewrite ^/uj/(.*)$ /$1 break; try_files $uri =404; }
    location /uk/ { rewrite ^/uk/(.*)$ /$1 break; try_files /none /t1/$1; }
    location /ul/ { alias html/; try_files $uri $uri/ /ul/a; }
    location /um/ { alias html/; try_files $uri /dir/$arg_x; }
    location /un/ { try_files $uri/ /a; }
    location /uo { try_files $uri/ $uri =404; }
    location /up2/ { try_files /$http_host /a; }
    location /uq/ { alias files/; location ~ ^/uq/in/(.*)$ { try_files /a$1 =404; } }
"#;

/// Target, status, `$uri|$args` at the end (empty for nothing), and `Location` or the body (`-` for a built-in page).
const ANSWERS: &[(&str, u16, &str, &str)] = &[
    ("/i/", 200, "/i/first|", "first"),
    ("/i2/", 200, "/i2/second|", "second"),
    ("/i2/x", 404, "/i2/x|", "-"),
    ("/iabs/", 200, "/abs.html|", "abs"),
    ("/iabs/?q=1", 200, "/abs.html|q=1", "abs"),
    ("/iabs1/", 200, "/abs.html|", "abs"),
    ("/iabs2/", 200, "/dir/index.html|", "dir index"),
    ("/iabsn/", 404, "/missing.html|", "-"),
    ("/iabsq/", 404, "/abs.html?x|", "-"),
    ("/ivar/", 200, "/ivar/localhost.html|", "lh"),
    ("/ivar2/?f=x/index.html", 200, "/ivar2/x/index.html|f=x/index.html", "argx"),
    ("/ivar2/?f=none", 403, "/ivar2/|f=none", "-"),
    ("/ivarabs/?f=/abs.html", 200, "/abs.html|f=/abs.html", "abs"),
    ("/ivarabs/?f=/none", 404, "/none|f=/none", "-"),
    ("/dd/", 301, "/dd/index.html|", "/dd/index.html/"),
    ("/nest/", 200, "/nest/dir/index.html|", "dir index"),
    ("/up/", 200, "/up/../a|", "a"),
    ("/php/", 200, "/php/index.php|", "php /php/index.php "),
    ("/php/?a=b", 200, "/php/index.php|a=b", "php /php/index.php a=b"),
    ("/ri/", 200, "/ri/index.html|", "f index"),
    ("/ri/sub/", 200, "/ri/sub/index.html|", "f sub"),
    ("/ri/sub", 301, "/ri/sub|", "/ri/sub/"),
    ("/ri2/", 301, "/ri2/none|", "/ri2/none/"),
    ("/ri2/sub/", 200, "/ri2/sub/index.html|", "f sub"),
    ("/fals/", 200, "/fals/index.html|", "f index"),
    ("/fals/sub", 301, "/fals/sub|", "/fals/sub/"),
    ("/fals/sub/", 200, "/fals/sub/index.html|", "f sub"),
    ("/indir/", 200, "/indir/index.html|", "inner /indir/index.html"),
    ("/iint/", 200, "/iint/index.html|", "internal"),
    ("/iint/index.html", 404, "/iint/index.html|", "-"),
    ("/exact/", 404, "/exact/index.html|", "-"),
    ("/e403/", 200, "/fallback|", "fb"),
    ("/e404/", 200, "/fallback|q", "fb"),
    ("/t1", 200, "/fallback|u=/t1&a=", "fb"),
    ("/t1/x?q=1", 200, "/fallback|u=/t1/x&a=q=1", "fb"),
    ("/t2/a", 200, "/t2/a|", "a"),
    ("/t2/x", 200, "/t2/x.html|", "x.html"),
    ("/t2/none", 418, "/t2/none|", ""),
    ("/t2/dir", 301, "/t2/dir|", "/t2/dir/"),
    ("/t2/dir/", 200, "/t2/dir/index.html|", "dir index"),
    ("/t2/../a", 200, "/a|", "a"),
    ("/t3/a", 200, "/t3/a|", "f a"),
    ("/t3/none", 301, "/t3/none|", "/t3/none/"),
    ("/t4/a", 200, "/t4/a|", "f a"),
    ("/t4/sub/", 200, "/t4/sub/index.html|", "f sub"),
    ("/t4/sub", 301, "/t4/sub|", "/t4/sub/"),
    ("/t4/zzz", 200, "/fallback|u=/t1&a=", "fb"),
    ("/t5/a", 200, "/t5/a|", "f a"),
    ("/t5/zz?q=1", 200, "/t5/zz|q=1", "named /t5/zz|q=1"),
    ("/tr/a", 200, "/a|", "a"),
    ("/tr/x", 200, "/x.html|", "x.html"),
    ("/tr/dir/", 200, "/dir/index.html|", "dir index"),
    ("/tr/dir", 301, "/dir|", "/dir/"),
    ("/tr/none", 404, "/tr/none|", "-"),
    ("/ta/a", 200, "a|", "f a"),
    ("/ta/sub/", 200, "sub/index.html|", "f sub"),
    ("/ta/sub", 301, "/ta/sub|", "/ta/sub/"),
    ("/ta/none/x", 404, "/ta/none/x|", "-"),
    ("/tc/a", 200, "/a|", "f a"),
    ("/tc/sub/", 403, "/tc/sub/|", "-"),
    ("/tc/zz", 200, "/tc/zz|", "named /tc/zz|"),
    ("/td/a", 200, "/td/a|", "named /td/a|"),
    ("/te/?f=/a&g=/dir&h=/b.html", 200, "/a|f=/a&g=/dir&h=/b.html", "a"),
    ("/te/?f=/none&g=/dir", 301, "/dir|f=/none&g=/dir", "/dir/?f=/none&g=/dir"),
    ("/tf/x", 301, "/dir|", "/dir/"),
    ("/tg/x", 200, "/a|", "a"),
    ("/th/x", 301, "/dir|", "/dir/"),
    ("/tk/x", 301, "/tk/x|", "-"),
    ("/tm/x", 404, "nolead|", "-"),
    ("/tn/x", 404, "http://other/x|", "-"),
    ("/to/x", 301, "/dir|", "/dir/"),
    ("/tp/x", 200, "/dir/index.html|", "dir index"),
    ("/tq/x", 200, "/only.php|a=b", "php /only.php a=b"),
    ("/tr2/x", 200, "/with space|", "sp"),
    ("/ts/x", 200, "/with space|", "sp"),
    ("/tt/x", 200, "/only.php|", "php"),
    ("/tu/x", 404, "/fallback|", "fb"),
    ("/tv/x?q=1", 200, "/tv/x|q=1", "named /tv/x|q=1"),
    ("/tw/x", 404, "/tw/x|", "-"),
    ("/tx/x", 200, "/a|", "a"),
    ("/tx/x?i=1", 404, "/tx/x|i=1", "-"),
    ("/ty/x", 200, "/abs.html|", "abs"),
    ("/ty/x?i=1", 404, "", "-"),
    ("/tz/x", 200, "/b.html|", "b"),
    ("/ua/x", 200, "/dir/../a|", "a"),
    ("/ub/dir", 200, "/ub/dir/index.html|", "dir index"),
    ("/ub/sub", 404, "/ub/sub|", "-"),
    ("/ub/empty", 404, "/ub/empty|", "-"),
    ("/uc/x?q=1", 200, "/uc2/uc/x|", "uc2 /uc2/uc/x "),
    ("/ud/a", 404, "/ud/a|", "-"),
    ("/ue", 200, "/a|", "a"),
    ("/uf/x", 200, "/a|", "a"),
    ("/ug/x", 404, "/ug/x|", "-"),
    ("/uh/x", 200, "/a|", "a"),
    ("/ui/x", 200, "/ui/x|", "early"),
    ("/uj/a", 200, "/a|", "a"),
    ("/uj/none", 404, "/none|", "-"),
    ("/uk/a", 200, "/fallback|u=/t1/a&a=", "fb"),
    ("/ul/none/x", 200, "/ul/a|", "a"),
    ("/um/a", 200, "/um/a|", "a"),
    ("/um/none?x=x", 200, "/dir/x|", "dir x"),
    ("/un/x", 200, "/a|", "a"),
    ("/up2/x", 200, "/a|", "a"),
    ("/uq/a", 200, "/uq/a|", "f a"),
    ("/uq/in/a", 404, "/uq/in/a|", "-"),
];

#[test]
fn index_and_try_files_match_nginx_in_every_location() {
    let site = FILES.iter().fold(server(), |site, (name, text)| site.file(name, text));
    let server = start(
        site,
        &format!(
            "default_type text/plain; server {{ listen 127.0.0.1:{{port}}; root html; absolute_redirect off; \
             add_header X-Uri $uri|$args always; {LOCATIONS} }}"
        ),
    );
    for (target, status, uri, text) in ANSWERS {
        let response = get(&server, target);
        let body = response.text();
        let shown = match response.field("Location") {
            Some(location) => location,
            None if body.contains("<html>") => "-",
            None => &body,
        };
        let entry = (response.status, response.field("X-Uri").unwrap_or_default(), shown);
        assert_eq!(entry, (*status, *uri, *text), "{target}");
    }
}
