//! Diagnostics of the configuration: missing files, mistakes, hints and warnings.

use std::fs;

use tw_testkit::TempDir;

use super::command_line::{FINE, prefix, run};

/// Output of a test of `conf`, without the name of the file.
fn tested(conf: &str) -> String {
    let dir = prefix(conf);
    fs::create_dir(dir.join("logs")).unwrap();
    let (_, out, err) = run(Some(dir.path()), &["-t"]);
    assert_eq!(out, "");
    err.replace(dir.join("conf/nginx.conf").to_str().unwrap(), "n.conf")
}

#[test]
fn missing_configuration_suggests_serve() {
    let dir = TempDir::new("cli").unwrap();
    let (code, out, err) = run(Some(dir.path()), &[]);
    let path = dir.join("conf/nginx.conf");
    let expected = format!(
        "tailwater: [emerg] open() \"{}\" failed (2: No such file or directory)\n    \
         = -c FILE says where the configuration is; \"tailwater serve\" needs none\n",
        path.display()
    );
    assert_eq!((code, &*out, err), (Some(1), "", expected));
}

#[test]
fn values_are_checked_even_if_nothing_uses_them() {
    for (directive, expected) in [
        ("ssl_protocols TLSv1.2 foo", "invalid value \"foo\""),
        ("proxy_ssl_protocols TLSv1.4", "invalid value \"TLSv1.4\""),
        ("postpone_output foo", "\"postpone_output\" directive invalid value"),
        ("types_hash_max_size 1x", "\"types_hash_max_size\" directive invalid value"),
        ("open_file_cache_events maybe", "it must be \"on\" or \"off\""),
        ("fastcgi_send_lowat foo", "\"fastcgi_send_lowat\" directive invalid value"),
        ("variables_hash_max_size foo", "\"variables_hash_max_size\" directive invalid value"),
    ] {
        let said = tested(&format!("events {{ }} http {{ {directive}; }}"));
        assert!(said.contains(expected), "{directive}: {said}");
    }
    let said = tested("timer_resolution foo; events { } http { }");
    assert!(said.contains("\"timer_resolution\" directive invalid value"), "{said}");
}

#[test]
fn all_missing_files_are_listed_at_once() {
    let said = tested(
        "load_module modules/ngx_http_perl_module.so;
events { }
http {
    log_format x '$remote_addr $geoip_org $Geoip_Org $defined';
    map $uri $geoip_city { default x; }
    add_header X $geoip_city;
    geoip_org /a.dat;
    server {
        listen 127.0.0.1:1;
        listen 127.0.0.1:2 ssl;
        location / {
            f4f;
            f4f_buffer_size $geoip_region;
            f4f_buffer_size $geoip_city;
            f4f_buffer_size $host;
            f4f_buffer_size $unknown;
        }
        location /a {
            f4f;
        }
    }
}
",
    );
    let expected = "\
tailwater: [warn] module \"ngx_http_perl_module\" is not supported by this version of Tailwater, \"load_module\" has no effect in n.conf:1
    1 | load_module modules/ngx_http_perl_module.so;
      |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = Perl is not supported; scripts in JavaScript run by \"js_content\" and \"js_set\", and \"map\" and \"rewrite\" do most of the rest
tailwater: [emerg] directive \"geoip_org\" (ngx_http_geoip_module) is not supported by this version of Tailwater in n.conf:7
    7 |     geoip_org /a.dat;
      |     ^^^^^^^^^
      = MaxMind no longer makes .dat files: \"geoip2 FILE.mmdb { $country_code country iso_code; }\" reads the databases of today
tailwater: [emerg] unknown \"defined\" variable in n.conf:4
    4 |     log_format x '$remote_addr $geoip_org $Geoip_Org $defined';
      |                                                      ^^^^^^^^
tailwater: [emerg] no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in n.conf:10
    10 |         listen 127.0.0.1:2 ssl;
       |         ^^^^^^^^^^^^^^^^^^^^^^^
tailwater: [emerg] in all, 3 directives and 2 variables are not supported by this version of Tailwater:
    ngx_http_geoip_module
        geoip_org      in n.conf:7
        $geoip_org     in n.conf:4
        $geoip_region  in n.conf:13
        = MaxMind no longer makes .dat files: \"geoip2 FILE.mmdb { $country_code country iso_code; }\" reads the databases of today
    ngx_http_f4f_module
        f4f              in n.conf:12, 19
        f4f_buffer_size  in n.conf:13, 14, 15, 16
tailwater: configuration file n.conf test failed
";
    assert_eq!(said, expected);
}

#[test]
fn one_missing_file_is_an_ordinary_error() {
    let said = tested("events { }\nhttp {\n    access_log $geoip_org;\n}\n");
    let expected = "\
tailwater: [emerg] variable \"$geoip_org\" (ngx_http_geoip_module) is not supported by this version of \
                    Tailwater in n.conf:3
    3 |     access_log $geoip_org;
      |                ^^^^^^^^^^
tailwater: configuration file n.conf test failed
";
    assert_eq!(said, expected);
}

#[test]
fn one_missing_file_is_reported_after_another_mistake() {
    let said = tested("events { }\nhttp {\n    frobnicate;\n    geoip_org /a;\n}\n");
    let first = said.find("unknown directive \"frobnicate\" in n.conf:3").unwrap();
    let second = said.find("directive \"geoip_org\" (ngx_http_geoip_module) is not supported");
    assert!(second.is_some_and(|second| second > first), "{said}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let said = tested(
        "events { worker_connections 1k; }
http {
    root /srv
    index index.html;
    server {
        frobnicate;
        client_max_body_size 10mb;
        frobnicate;
        limit_req zone=none;
        add_header X $unknown;
        map $uri $known { default; }
        add_header Y $known;
    }
}
",
    );
    let expected = "\
tailwater: [emerg] \"worker_connections\" directive invalid number in n.conf:1
    1 | events { worker_connections 1k; }
      |                             ^^
      = a number without a unit is expected, such as 1
tailwater: [emerg] invalid number of arguments in \"root\" directive in n.conf:4
    3 |     root /srv
      |              ^
      = is a \";\" missing at the end of line 3?
tailwater: [emerg] unknown directive \"frobnicate\" in n.conf:6
    6 |         frobnicate;
      |         ^^^^^^^^^^
tailwater: [emerg] \"client_max_body_size\" directive invalid value in n.conf:7
    7 |         client_max_body_size 10mb;
      |                              ^^^^
      = sizes end in k, m or nothing: 10m
tailwater: [emerg] unknown directive \"frobnicate\" in n.conf:8
tailwater: [emerg] \"map\" directive is not allowed here in n.conf:11
    11 |         map $uri $known { default; }
       |         ^^^^^^^^^^^^^^^^^
       = \"map\" is allowed in: http
tailwater: [emerg] zero size shared memory zone \"none\" in n.conf:9
    9 |         limit_req zone=none;
      |                        ^^^^
      = a zone of this name is used, and nothing in \"http\" defines one
tailwater: [emerg] unknown \"unknown\" variable in n.conf:10
    10 |         add_header X $unknown;
       |                      ^^^^^^^^
tailwater: configuration file n.conf test failed
";
    assert_eq!(said, expected);

    let said = tested(
        "events { }
http {
    limit_req zone=none;
    server {
        limit_req zone=neither;
        add_header X $remote_adr$remote_adr;
    }
}
",
    );
    let expected = "\
tailwater: [emerg] zero size shared memory zone \"none\" in n.conf:3
    3 |     limit_req zone=none;
      |                    ^^^^
      = a zone of this name is used, and nothing in \"http\" defines one
tailwater: [emerg] zero size shared memory zone \"neither\" in n.conf:5
    5 |         limit_req zone=neither;
      |                        ^^^^^^^
      = a zone of this name is used, and nothing in \"http\" defines one
tailwater: [emerg] unknown \"remote_adr\" variable in n.conf:6
    6 |         add_header X $remote_adr$remote_adr;
      |                      ^^^^^^^^^^^
      = did you mean \"$remote_addr\"?
tailwater: configuration file n.conf test failed
";
    assert_eq!(said, expected);
    let said = tested("events { }\nhttp {\n    add_header X $remote_adr;\n}\n");
    let expected = "\
tailwater: [emerg] unknown \"remote_adr\" variable in n.conf:3
    3 |     add_header X $remote_adr;
      |                  ^^^^^^^^^^^
      = did you mean \"$remote_addr\"?
tailwater: configuration file n.conf test failed
";
    assert_eq!(said, expected);
}

#[test]
fn failures_of_reading_do_not_hide_mistakes() {
    let said = tested(
        "events { }
http {
    lisen 1;
    include none.conf;
    server {
        location ~ ^/[0-9]{8,}$ { return 204; }
        location /lua { content_by_lua_block { ngx.say(\"it's }\") } }
        pagespeed on;
        return 204 $elsewhere;
    }
    server {
        frobnicate;
        return 204 'a'b;
    }
",
    );
    let (first, _) = said.split_once('\n').unwrap();
    assert_eq!(first, "tailwater: [emerg] unknown directive \"lisen\" in n.conf:3");
    let mut from = 0;
    for part in [
        "none.conf\" failed (2: No such file or directory) in n.conf:4\n",
        "unexpected \"{\" in \"^/[0-9]{8,}$\" in n.conf:6\n",
        "= a regular expression with braces must be in quotes: \"^/[0-9]{8,}$\"\n",
        "unknown directive \"content_by_lua_block\" in n.conf:7\n",
        "= Lua is not supported",
        "unknown directive \"pagespeed\" in n.conf:8\n",
        "= pages are not rewritten",
        "unknown directive \"frobnicate\" in n.conf:12\n",
        "unexpected \"b\" in n.conf:13\n",
    ] {
        let at = said[from..].find(part);
        from += at.unwrap_or_else(|| panic!("{part} is not where it should be: {said}"));
    }
    // A file that could not be read may define the variable.
    assert!(!said.contains("elsewhere"), "{said}");
}

#[test]
fn missing_brace_is_not_reported_as_misplaced_directives() {
    let said =
        tested("events { }\nhttp {\n    server {\n        location / {\n    }\n    server {\n    }\n}\n");
    assert!(said.contains("unexpected end of file, expecting \"}\" in n.conf:9"), "{said}");
    assert!(said.contains("perhaps a \"}\" is missing") && !said.contains("not allowed here"), "{said}");
}

#[test]
fn warning_about_an_included_file_is_printed_once() {
    let servers = "server { listen 127.0.0.1:1 http2; include part; return 204; }\n".repeat(66);
    let dir = prefix(&format!("events {{ }}\nhttp {{\n{servers}}}\n"));
    fs::create_dir(dir.join("logs")).unwrap();
    dir.write("conf/part", "location /img { alias /srv/img/; }\n").unwrap();
    let (code, _, err) = run(Some(dir.path()), &["-t"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(err.matches("ends without a slash").count(), 1, "{err}");
    assert!(err.contains("\"/img../\" leaves the directory in ") && err.contains("conf/part:1\n"), "{err}");
    assert!(err.contains("the same in 66 places"), "{err}");

    dir.write("conf/part", "frobnicate;\n").unwrap();
    let (_, _, err) = run(Some(dir.path()), &["-t"]);
    assert_eq!(err.matches("frobnicate\" in ").count(), 1, "{err}");
    assert!(err.contains("= the same in 66 places"), "{err}");
}

#[test]
fn alias_traversal_warning_has_no_false_positives() {
    for (location, is_warned) in [
        ("location /img { alias /srv/img/; }", true),
        ("location ^~ /img { alias $document_uri/; }", true),
        ("location /img/ { alias /srv/img/; }", false),
        ("location /img { alias /srv/img; }", false),
        ("location = /img { alias /srv/img/; }", false),
        ("location ~ /img(.*) { alias /srv/img/; }", false),
        ("location /img { root /srv/img/; }", false),
    ] {
        let conf = format!("events {{ }} http {{ server {{ listen 127.0.0.1:1; {location} }} }}");
        let said = tested(&conf);
        assert_eq!(said.contains("leaves the directory"), is_warned, "{location}: {said}");
        assert!(said.contains("test is successful"), "{said}");
    }
}

#[test]
fn common_slips_have_hints() {
    for (text, hint) in [
        ("if ($uri == /a) { return 204; }", "values are compared with \"=\""),
        ("if($uri = /a) { return 204; }", "a blank is missing between \"if\" and \"(\""),
        ("add_header X \u{201c}a b c d\u{201d};", "is no quote here"),
        ("root\u{a0}/srv;", "(U+00A0, perhaps non-breaking)"),
        ("vhost_traffic_status_measure_status_codes all;", "status_zone"),
        ("auth_pam on;", "auth_request"),
        ("location / { perl a::b; }", "Perl is not supported"),
        ("listen 127.0.0.1:2 quic;", ""),
    ] {
        let said = tested(&format!("events {{ }} http {{ server {{ listen 127.0.0.1:1; {text} }} }}"));
        assert!(said.contains(hint) && said.contains("test failed"), "{text}: {said}");
    }
    let said = tested("http { server { listen 127.0.0.1:1; } }");
    assert!(said.contains("no \"events\" section in configuration\n    = add \"events { }\""), "{said}");
}

#[test]
fn duplicate_server_name_is_warned_of_with_both_places() {
    let said = tested(
        "events { }
http {
    server { listen 127.0.0.1:1; server_name a b; }
    server { listen 127.0.0.1:1;
        server_name c b;
    }
}
",
    );
    let expected = "\
tailwater: [warn] conflicting server name \"b\" on 127.0.0.1:1, ignored in n.conf:5
    5 |         server_name c b;
      |                       ^
      = the name was given before in n.conf:3
";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn load_module_of_a_built_in_module_is_noted() {
    let conf = format!("load_module modules/ngx_http_brotli_filter_module.so;\n{FINE}");
    let dir = prefix(&conf);
    fs::create_dir(dir.join("logs")).unwrap();
    let (code, _, err) = run(Some(dir.path()), &["-t"]);
    assert_eq!(code, Some(0), "{err}");
    let note = "tailwater: [notice] module \"ngx_http_brotli_filter_module\" is built in, \"load_module\" has no effect in ";
    assert!(err.starts_with(note), "{err}");
    assert_eq!(run(Some(dir.path()), &["-tq"]).2, "");
}

#[test]
fn host_similar_to_an_upstream_name_is_warned_of() {
    let conf = |pass: &str| {
        format!(
            "events {{ }}\nhttp {{\n upstream Backend {{ server 127.0.0.1:1; }}\n server {{ listen 127.0.0.1:1;\n\
             location /a {{ {pass}; }}\nlocation /b {{ {pass}; }}\n }}\n}}\n"
        )
    };
    let expected = "\
tailwater: [warn] no upstream has the name \"bakend\", it is resolved as the name of a host in n.conf:5
    5 | location /a { proxy_pass http://bakend; }
      |                          ^^^^^^^^^^^^^
      = did you mean the upstream \"Backend\"?
";
    let said = tested(&conf("proxy_pass http://bakend"));
    assert!(said.starts_with(expected) && said.contains("test is successful"), "{said}");
    assert_eq!(said.matches("[warn]").count(), 1, "{said}");
    for pass in ["http://backend", "http://BACKEND", "http://bakend:80", "http://bakend.test", "http://other"]
    {
        let said = tested(&conf(&format!("proxy_pass {pass}")));
        assert!(!said.contains("[warn]"), "{said}");
    }
    // A name without a port is refused. A misspelled upstream name is the more likely cause.
    for pass in ["fastcgi_pass bakend", "grpc_pass grpc://bakend"] {
        let said = tested(&conf(pass));
        let expected = "no port in upstream \"bakend\" in n.conf:5";
        assert!(said.contains(expected) && said.contains("the upstream \"Backend\"?"), "{said}");
    }
}

#[test]
fn variables_without_a_resolver_are_warned_of_once() {
    for (conf, expected) in [
        ("location / { proxy_pass http://$arg_to; } location /b { proxy_pass http://$arg_to; }", 1),
        ("location / { proxy_pass http://app.test:81/$arg_to; } location /b { fastcgi_pass $arg_to; }", 1),
        ("location / { proxy_pass $arg_to; }", 1),
        ("location / { fastcgi_pass $arg_to:9000; }", 1),
        ("location / { uwsgi_pass $arg_to:9000; }", 1),
        ("location / { scgi_pass $arg_to:9000; }", 1),
        ("location / { grpc_pass grpc://$arg_to:9000; }", 1),
        ("location / { set $memcached_key k; memcached_pass $arg_to:9000; }", 1),
        ("tunnel_pass; tunnel_allow_upstream $arg_a;", 1),
        ("resolver 127.0.0.1; location / { proxy_pass http://$arg_to; }", 0),
        ("location /a { resolver 127.0.0.1; } location /b { proxy_pass http://$arg_to; }", 1),
        ("location /a { resolver 127.0.0.1; proxy_pass http://$arg_to; } location /b { root x; }", 0),
        ("location / { proxy_pass http://127.0.0.1:81/$arg_to; }", 0),
        ("location / { proxy_pass http://[::1]/$arg_to; }", 0),
        ("location / { proxy_pass http://127.0.0.1:$arg_to; }", 0),
        ("location / { proxy_pass http://U/$arg_to; }", 0),
        ("location / { proxy_pass http://unix:/run/a.sock:/$arg_to; }", 0),
        ("location / { fastcgi_pass unix:/run/$arg_to; }", 0),
        ("location / { proxy_pass http://app.test; }", 0),
        ("location / { proxy_pass $addresses; }", 0),
        ("location / { proxy_pass http://$hosts:81/; }", 0),
        ("location / { proxy_pass http://${hosts}:81; }", 0),
        ("location / { fastcgi_pass $hosts:9000; }", 0),
        ("location / { proxy_pass http://$names; }", 1),
        ("location / { proxy_pass http://$split; }", 0),
        ("location / { proxy_pass http://$by_address; }", 0),
        ("location / { proxy_pass http://$computed; }", 1),
    ] {
        let said = tested(&format!(
            "events {{ }} http {{ upstream u {{ server 127.0.0.1:1; }}
             map $arg_a $addresses {{ a http://10.0.0.1:81; b https://[::1]/path; c http://unix:/a; default http://u; }}
             map $arg_a $hosts {{ default 10.0.0.1; b 10.0.0.2; }}
             map $arg_a $names {{ default 10.0.0.1; b app.test; }}
             map $arg_a $computed {{ default $arg_b; }}
             split_clients $arg_a $split {{ 50% u; * 10.0.0.1:81; }}
             geo $by_address {{ default u; 10.0.0.0/8 10.0.0.1:81; }}
             server {{ listen 127.0.0.1:1; {conf} }} }}"
        ));
        assert_eq!(
            said.matches("no resolver is defined for the names in").count(),
            expected,
            "{conf}: {said}"
        );
        assert!(said.contains("test is successful"), "{said}");
    }
}

#[test]
fn mistakes_of_newcomers_point_at_their_word_and_have_hints() {
    let said = tested(
        "events { }
http {
    log_format x '$remote_addr [$time_local] $remote_usr \"$request\"';
    upstream app { server http://127.0.0.1:3000; }
    server {
        listen 127.0.0.1:1;
        proxy_pas http://127.0.0.1:3000;
        keepalive_timeout 5x;
        location /a { proxy_pass 127.0.0.1:3000; }
        location /b { fastcgi_pass http://127.0.0.1:9000; }
        location /c { grpc_pass https://127.0.0.1:50051; }
        location /d { fastcgi_pass /run/php.sock; }
        if ($arg_a = 1 && $arg_b = 2) { return 403; }
        client_max_body_size 10 MB;
    }
}
",
    );
    let expected = "\
tailwater: [emerg] invalid host in upstream \"http://127.0.0.1:3000\" in n.conf:4
    4 |     upstream app { server http://127.0.0.1:3000; }
      |                           ^^^^^^^^^^^^^^^^^^^^^
      = did you mean \"127.0.0.1:3000\"? The scheme stands where the group is used: proxy_pass http://NAME
tailwater: [emerg] unknown directive \"proxy_pas\" in n.conf:7
    7 |         proxy_pas http://127.0.0.1:3000;
      |         ^^^^^^^^^
      = did you mean \"proxy_pass\"? It is allowed in: location, if in location, limit_except
tailwater: [emerg] \"keepalive_timeout\" directive invalid value in n.conf:8
    8 |         keepalive_timeout 5x;
      |                           ^^
      = times end in ms, s, m, h or d: 5s
tailwater: [emerg] invalid URL prefix in n.conf:9
    9 |         location /a { proxy_pass 127.0.0.1:3000; }
      |                                  ^^^^^^^^^^^^^^
      = did you mean \"http://127.0.0.1:3000\"?
tailwater: [emerg] unexpected \"&&\" in condition in n.conf:13
    13 |         if ($arg_a = 1 && $arg_b = 2) { return 403; }
       |                        ^^
       = a condition is one comparison; a \"map\" in \"http\" combines several: map \"$arg_a:$arg_b\" $both { default 0; \"1:2\" 1; }, then if ($both)
tailwater: [emerg] invalid number of arguments in \"client_max_body_size\" directive in n.conf:14
    14 |         client_max_body_size 10 MB;
       |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^
       = a unit follows its number without a blank: 10m
tailwater: [emerg] invalid host in upstream \"http://127.0.0.1:9000\" in n.conf:10
    10 |         location /b { fastcgi_pass http://127.0.0.1:9000; }
       |                                    ^^^^^^^^^^^^^^^^^^^^^
       = did you mean \"127.0.0.1:9000\"? An address has no scheme here; \"proxy_pass\" is for servers that speak HTTP
tailwater: [emerg] invalid host in upstream \"https://127.0.0.1:50051\" in n.conf:11
    11 |         location /c { grpc_pass https://127.0.0.1:50051; }
       |                                 ^^^^^^^^^^^^^^^^^^^^^^^
       = did you mean \"grpcs://127.0.0.1:50051\"? The scheme here is grpc:// or grpcs://, or none; \"proxy_pass\" is for servers that speak HTTP
tailwater: [emerg] invalid host in upstream \"/run/php.sock\" in n.conf:12
    12 |         location /d { fastcgi_pass /run/php.sock; }
       |                                    ^^^^^^^^^^^^^
       = did you mean \"unix:/run/php.sock\"?
tailwater: [emerg] unknown \"remote_usr\" variable in n.conf:3
    3 |     log_format x '$remote_addr [$time_local] $remote_usr \"$request\"';
      |                                              ^^^^^^^^^^^
      = did you mean \"$remote_user\"?
tailwater: configuration file n.conf test failed
";
    assert_eq!(said, expected);
}

#[test]
fn url_with_variables_but_without_scheme_is_warned_of() {
    for (pass, is_warned) in [
        ("127.0.0.1:$arg_port", true),
        ("http://127.0.0.1:$arg_port", false),
        ("$arg_to", false),
        ("$scheme://127.0.0.1", false),
    ] {
        let said = tested(&format!(
            "events {{ }} http {{ resolver 127.0.0.1; server {{ listen 127.0.0.1:1; location / {{ proxy_pass {pass}; }} }} }}"
        ));
        assert_eq!(said.contains("has no scheme"), is_warned, "{pass}: {said}");
        assert!(said.contains("test is successful"), "{said}");
    }
}

#[test]
fn mistakes_of_all_steps_are_reported_together() {
    let said = tested(
        "user nobody_of_this_name;
events { }
http {
    frobnicate;
    limit_req_zone $binary_remote_addr zone=one:10mb rate=1r/s;
    access_log /none/none/access.log;
    server {
        listen 127.0.0.1:1 default_server;
        limit_req zone=one;
        rewrite ^/a( /b;
        rewrite ^/c( /d;
    }
    server {
        listen 127.0.0.1:1 default_server;
        listen 127.0.0.1:2 ssl;
        ssl_certificate none.pem;
        ssl_certificate_key none.key;
    }
    server {
        listen 127.0.0.1:3 ssl;
        location / { access_log logs/a.log none; limit_req zone=other; }
    }
}
",
    );
    for part in [
        "unknown directive \"frobnicate\" in n.conf:4\n",
        "invalid zone size \"zone=one:10mb\" in n.conf:5\n",
        "in \"^/a(\" in n.conf:10\n",
        "in \"^/c(\" in n.conf:11\n",
        "cannot load certificate \"",
        "unknown log format \"none\" in n.conf:21\n",
        "zero size shared memory zone \"other\" in n.conf:21\n",
        "a duplicate default server for 127.0.0.1:1 in n.conf:14\n",
        "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in n.conf:20\n",
        "open() \"/none/none/access.log\" failed (2: No such file or directory)\n",
        "test failed\n",
    ] {
        assert_eq!(said.matches(part).count(), 1, "{part}: {said}");
    }
    // The zone is missing because its definition is wrong, as are the certificates of the second server.
    assert!(!said.contains("zone \"one\""), "{said}");
    assert_eq!(said.matches("no \"ssl_certificate\"").count(), 1, "{said}");
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(said.contains("getpwnam(\"nobody_of_this_name\") failed"), is_root, "{said}");
}

#[test]
fn repeated_notices_are_folded() {
    let said = tested(
        "events { }
http {
    server { listen 127.0.0.1:1 http2; }
    server { listen 127.0.0.1:2 http2; listen 127.0.0.1:3 http2; }
    server {
        listen 127.0.0.1:4 http2;
    }
}
",
    );
    let expected = "\
tailwater: [warn] the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead in n.conf:3
    3 |     server { listen 127.0.0.1:1 http2; }
      |                                 ^^^^^
      = the same in 4 places: n.conf:3, 4, 6
";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(said.matches("[warn]").count(), 1, "{said}");
}

#[test]
fn things_that_this_machine_lacks_are_warned_of() {
    let said = tested(
        "events { }
http {
    upstream used { server 127.0.0.1:1; }
    upstream unused { server 127.0.0.1:1; }
    error_page 404 @everywhere;
    server {
        listen 127.0.0.1:1;
        listen 192.0.2.7:80;
        root /none/none;
        auth_basic on;
        auth_basic_user_file none.htpasswd;
        location / { try_files $uri @missing; }
        location /b { error_page 502 = @there; proxy_pass http://used; }
        location /c { proxy_pass http://name.invalid; }
        location /d { alias /none/d/; }
        location /e { root /none/$host; try_files $uri $uri/ =404; }
        location @there { return 204; }
    }
}
",
    );
    for (part, count) in [
        ("[warn] \"root\" names \"/none/none\", which does not exist in n.conf:9\n", 1),
        ("[warn] \"alias\" names \"/none/d/\", which does not exist in n.conf:15\n", 1),
        ("none.htpasswd\" does not exist in n.conf:11\n", 1),
        ("[warn] there is no location \"@missing\", a request that goes on there gets 500 in n.conf:12\n", 1),
        (
            "[warn] there is no location \"@everywhere\", a request that goes on there gets 500 in n.conf:5\n",
            1,
        ),
        ("[warn] no interface of this machine has the address 192.0.2.7 in n.conf:8\n", 1),
        ("[notice] nothing passes to the upstream \"unused\" in n.conf:4\n", 1),
        ("[notice] the host name \"name.invalid\" has no address now in n.conf:14\n", 1),
        ("does not exist", 3),
        ("there is no location", 2),
        ("nothing passes", 1),
        ("test is successful", 1),
    ] {
        assert_eq!(said.matches(part).count(), count, "{part}: {said}");
    }
    // A variable may name any group.
    let said = tested(
        "events { } http { resolver 127.0.0.1; upstream a { server 127.0.0.1:1; }
         server { listen 127.0.0.1:1; location / { proxy_pass http://$arg_to; } } }",
    );
    assert!(!said.contains("nothing passes"), "{said}");
}
