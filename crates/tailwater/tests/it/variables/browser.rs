//! `modern_browser`, `ancient_browser`

use crate::support::{refusal, request, server, start};

#[test]
fn browsers_are_classified_as_modern_or_ancient() {
    let server = start(
        server(),
        "ancient_browser_value old;
         server { listen 127.0.0.1:{port};
             location / { return 200 'm=$modern_browser a=$ancient_browser i=$msie'; }
             location /listed { modern_browser msie 5.5; modern_browser gecko 1.0.0; modern_browser_value new;
                 return 200 'm=$modern_browser a=$ancient_browser i=$msie';
                 location /listed/inner { return 200 'm=$modern_browser a=$ancient_browser'; }
                 location /listed/unlisted { modern_browser unlisted; ancient_browser Links netscape4;
                     return 200 'm=$modern_browser a=$ancient_browser'; }
             }
         }
         server { listen 127.0.0.1:{port}; server_name default; ancient_browser_value 1;
             location / { return 200 'm=$modern_browser a=$ancient_browser'; } }",
    );
    let msie = "User-Agent: Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)";
    let opera = "User-Agent: Mozilla/4.0 (compatible; MSIE 6.0; X11; FreeBSD i386) Opera 7.50  [en]";
    let links = "User-Agent: Links (2.1pre15)";
    for (target, agent, expected) in [
        ("/", msie, "m= a=old i=1"),
        ("/", links, "m= a=old i="),
        ("/listed", msie, "m=new a= i=1"),
        ("/listed", opera, "m= a=old i="),
        ("/", "User-Agent: Mozilla/4.0 (compatible; MSIE 6.0; X11; Linux) Opera 8.50", "m= a=old i="),
        ("/listed", links, "m= a=old i="),
        ("/listed/inner", msie, "m=new a="),
        ("/listed/unlisted", links, "m= a=old"),
        ("/listed/unlisted", opera, "m= a=old"),
        ("/listed/unlisted", "User-Agent: other", "m=new a="),
    ] {
        assert_eq!(request(&server, &format!("GET {target}"), &[agent]).text(), expected, "{target} {agent}");
    }
    assert_eq!(request(&server, "GET /", &[]).text(), "m= a=old i=");
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        ("modern_browser netscape 4.0;", "unknown browser name \"netscape\" in"),
        ("modern_browser msie 5.x;", "invalid browser version \"5.x\" in"),
        ("modern_browser msie;", "invalid parameter \"msie\" in"),
        ("ancient_browser;", "invalid number of arguments in \"ancient_browser\" directive"),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
}
