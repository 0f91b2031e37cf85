//! Names of `upstream` blocks, and addresses that are refused where they are written.

use tw_testkit::dns::DnsServer;

use crate::{get, refusal, server, start};

#[test]
fn names_of_groups_are_compared_without_case() {
    // It says nothing: a name that is asked for is a failure.
    let dns = DnsServer::start(|_, _| {});
    let server = start(
        server(),
        &format!(
            "resolver {}; resolver_timeout 1s;
             upstream Mixed {{ server 127.0.0.1:{{port}}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location = /origin {{ return 200 me; }}
                 location = /lower {{ proxy_pass http://mixed/origin; }}
                 location = /upper {{ proxy_pass http://MIXED/origin; }}
                 location = /written {{ proxy_pass http://Mixed/origin; }}
                 location = /variable {{ proxy_pass http://$arg_to/origin; }}
                 location = /fastcgi {{ fastcgi_pass mIXED; }}
                 location = /fastcgi_variable {{ fastcgi_pass $arg_to; }}
                 location = /grpc {{ grpc_pass grpc://mixed; }}
                 location /api {{ api; }} }}",
            dns.addr()
        ),
    );
    for target in
        ["/lower", "/upper", "/written", "/variable?to=mixed", "/variable?to=Mixed", "/variable?to=MIXED"]
    {
        assert_eq!(get(&server, target).text(), "me", "{target}");
    }
    // Its server speaks neither, but it is asked.
    for target in ["/fastcgi", "/fastcgi_variable?to=mixed", "/grpc"] {
        assert_eq!(get(&server, target).status, 502, "{target}");
    }
    server.wait_error_log("upstream: \"fastcgi://127.0.0.1:").unwrap();
    assert!(dns.asked().is_empty());
    assert!(get(&server, "/api/http/upstreams").text().starts_with("{\"Mixed\":"));
    assert_eq!(get(&server, "/api/http/upstreams/mixed").status, 200);
    let said = refusal("} upstream a { server 127.0.0.1:1; } upstream A { server 127.0.0.1:1; } server {");
    assert!(said.contains("duplicate upstream \"A\""), "{said}");
}
