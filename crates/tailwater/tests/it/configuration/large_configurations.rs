//! Load time of large configurations.

use std::fmt::Write;

use crate::support::server;

/// Sizes at which a quadratic step would take minutes, and a linear one a second.
#[test]
fn load_time_grows_linearly() {
    let mut map = String::new();
    let mut geo = String::new();
    let mut ranges = String::new();
    let mut servers = String::new();
    for n in 0..20_000 {
        writeln!(map, "key{n}.example.com 'value {n}';").unwrap();
        writeln!(geo, "10.{}.{}.0/24 {n};", n / 256, n % 256).unwrap();
        writeln!(ranges, "10.{0}.{1}.0-10.{0}.{1}.255 {n};", n / 256, n % 256).unwrap();
    }
    for n in 0..1000 {
        let address = format!("127.{}.{}.1", n / 250, n % 250 + 1);
        writeln!(
            servers,
            "server {{ listen {address}:80; listen 127.0.0.1:81; server_name s{n} *.w{n} ~^r(\\d+)$; root /{n};
             location ~ \\.(php|html)$ {{ return 200 $mapped; }} }}"
        )
        .unwrap();
    }
    write!(servers, "server {{ listen 127.0.0.1:81;").unwrap();
    for n in 0..5000 {
        write!(servers, "location /p{n}/ {{ location /p{n}/q {{ }} }} location = /e{n} {{ expires 1h; }}")
            .unwrap();
        write!(servers, "location ~ \\.(gif|jpg)$ {{ root /img; }}").unwrap();
    }
    write!(servers, "}}").unwrap();
    let output = server()
        .file("conf/big.map", map)
        .file("conf/big.geo", geo)
        .file("conf/big.ranges", ranges)
        .arg("-t")
        .run(&format!(
            "http {{ map $host $mapped {{ hostnames; include big.map; }} geo $country {{ include big.geo; }}
             geo $range {{ ranges; include big.ranges; }} {servers} }}"
        ))
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("test is successful"), "{said}");
}
