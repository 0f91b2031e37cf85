//! Connections that are not HTTP for the controller: services over TCP and UDP, TLS that is passed through; and ports that are in use.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use serde_json::{Value, json};
use tw_testkit::origin::{origin, secured};
use tw_testkit::ports::Port;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, wait};
use tw_tls::rustls;

use crate::cluster::{CONFIG_MAPS, Cluster, INGRESSES, Pod, SECRETS, SERVICES, SLICES, ingress, local};
use crate::gateway::{class, expect_condition, gateway, put, route, to};

/// Pod that sends its name and closes.
fn speaker(name: &'static str) -> SocketAddr {
    origin(move |mut conn| conn.send(name))
}

/// Pod that sends back the first line that is no header of the PROXY protocol, and the header before it. It reads all that a test sends: to
/// close a socket with unread bytes resets the connection.
fn echo() -> SocketAddr {
    origin(|mut conn| {
        let mut text = String::new();
        let mut start = 0;
        while conn.reader.read_line(&mut text).is_ok_and(|read| read > 0) {
            if !text[start..].starts_with("PROXY ") {
                conn.send(&text);
                return;
            }
            start = text.len();
        }
    })
}

/// Pod that answers each datagram with its name and the datagram.
fn datagrams(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((size, from)) = socket.recv_from(&mut buffer) {
            let answer = [name.as_bytes(), b" ", &buffer[..size]].concat();
            let _ = socket.send_to(&answer, from);
        }
    });
    addr
}

/// Replaces a service with one port, and its endpoints.
fn service(cluster: &Cluster, name: &str, protocol: &str, pods: &[SocketAddr]) {
    let port = json!({"name": "main", "port": 80, "protocol": protocol});
    cluster.api.put(
        SERVICES,
        json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"type": "ClusterIP", "clusterIP": "127.0.0.1", "ports": [port]}}),
    );
    let port = pods.first().map_or(1, SocketAddr::port);
    let endpoints: Vec<_> = pods.iter().take(1).map(|_| json!({"addresses": ["127.0.0.1"]})).collect();
    cluster.api.put(SLICES, json!({
        "metadata": {"name": format!("{name}-0"), "namespace": "shop", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "main", "port": port, "protocol": protocol}], "endpoints": endpoints,
    }));
}

fn map(cluster: &Cluster, name: &str, data: Value) {
    cluster.api.put(CONFIG_MAPS, json!({"metadata": {"name": name, "namespace": "system"}, "data": data}));
}

/// Everything that a server sends after these bytes.
fn exchange(port: &Port, sent: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(local(port))?;
    stream.set_read_timeout(Some(wait::TIMEOUT))?;
    stream.write_all(sent.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Answer to a datagram.
fn ask(port: &Port, text: &str) -> Option<String> {
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    socket.set_read_timeout(Some(std::time::Duration::from_millis(500))).ok()?;
    socket.send_to(text.as_bytes(), local(port)).ok()?;
    let mut buffer = [0; 2048];
    let size = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..size]).into_owned())
}

#[test]
fn services_over_tcp_change_their_endpoints_without_a_reload() {
    let args = ["--tcp-services-configmap", "system/tcp"];
    let Some(mut cluster) = Cluster::new(&args) else { return };
    let port = || Port::reserve().unwrap();
    let plain = port();
    let sends = port();
    let takes = port();
    let both = port();
    service(&cluster, "db", "TCP", &[speaker("first")]);
    service(&cluster, "echo", "TCP", &[echo()]);
    map(
        &cluster,
        "tcp",
        json!({
            plain.number().to_string(): "shop/db:80",
            sends.number().to_string(): "shop/echo:main::PROXY",
            takes.number().to_string(): "shop/echo:80:PROXY",
            both.number().to_string(): "shop/echo:80:PROXY:PROXY",
            "1": "shop/missing:80", "x": "shop/db:80", "2": "db", cluster.http.number().to_string(): "shop/db:80",
        }),
    );
    cluster.start();
    assert_eq!(exchange(&plain, "").unwrap(), "first", "{}\n{}", cluster.config(), cluster.log());
    let header = exchange(&sends, "x\n").unwrap();
    assert!(header.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "), "{header}");
    let sent = "PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n";
    assert_eq!(exchange(&takes, &format!("{sent}hello\n")).unwrap(), "hello\n");
    let header = exchange(&both, &format!("{sent}hello\n")).unwrap();
    assert!(header.starts_with("PROXY TCP4 192.0.2.1 "), "{header}");
    for text in [
        "TCP port 1 is not served: service \"shop/missing\" is missing",
        "key \"x\": no port",
        "key \"2\": the value is not namespace/service:port",
        "the controller itself listens there",
    ] {
        cluster.wait_log(text);
    }

    let reloads = cluster.reloads();
    service(&cluster, "db", "TCP", &[speaker("second")]);
    let changed = wait::until(wait::TIMEOUT, || exchange(&plain, "").is_ok_and(|text| text == "second"));
    assert!(changed, "{}", cluster.log());
    assert_eq!(cluster.reloads(), reloads, "{}", cluster.log());

    map(&cluster, "tcp", json!({}));
    assert!(wait::until(wait::TIMEOUT, || TcpStream::connect(local(&plain)).is_err()), "{}", cluster.log());
}

#[test]
fn services_over_udp_change_their_endpoints_without_a_reload() {
    let args = ["--udp-services-configmap", "system/udp"];
    let Some(mut cluster) = Cluster::new(&args) else { return };
    let port = Port::reserve().unwrap();
    service(&cluster, "dns", "UDP", &[datagrams("first")]);
    map(&cluster, "udp", json!({port.number().to_string(): "shop/dns:80"}));
    cluster.start();
    assert_eq!(ask(&port, "a").as_deref(), Some("first a"), "{}\n{}", cluster.config(), cluster.log());
    let reloads = cluster.reloads();
    service(&cluster, "dns", "UDP", &[datagrams("second")]);
    let changed = wait::until(wait::TIMEOUT, || ask(&port, "b").is_some_and(|text| text == "second b"));
    assert!(changed, "{}", cluster.log());
    assert_eq!(cluster.reloads(), reloads, "{}", cluster.log());
}

/// Pod that speaks HTTP over TLS and answers with its name.
fn secured_pod(authority: &Authority, host: &str, name: &'static str) -> SocketAddr {
    let config = Authority::server(rustls::ALL_VERSIONS, &authority.certify(&[host]));
    secured(config, move |mut conn| {
        while conn.head().is_some() {
            conn.answer("", name);
        }
    })
}

/// Body of a response over TLS, from a server that this authority vouches for.
fn https(port: &Port, authority: &Authority, host: &str) -> std::io::Result<String> {
    let config = authority.client(rustls::ALL_VERSIONS);
    let mut client = Client::connect_tls(local(port), &config, host)?;
    client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))?;
    Ok(client.read_response()?.text())
}

/// Puts a secret with a certificate for a host.
fn certificate(cluster: &Cluster, authority: &Authority, name: &str, host: &str) {
    let made = authority.certify(&[host]);
    let encode = |text: &str| String::from_utf8(tw_http::base64::encode(text.as_bytes())).unwrap();
    cluster.api.put(
        SECRETS,
        json!({
            "metadata": {"name": name, "namespace": "shop"}, "type": "kubernetes.io/tls",
            "data": {"tls.crt": encode(&made.pem), "tls.key": encode(&made.key)},
        }),
    );
}

#[test]
fn tls_of_an_ingress_is_passed_through() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let inner = Authority::new();
    let outer = Authority::new();
    let pod = Pod::start("pod-plain");
    cluster.service("shop", "plain", &[&pod]);
    service(&cluster, "pass", "TCP", &[secured_pod(&inner, "pass.example", "first")]);
    service(&cluster, "empty", "TCP", &[]);
    certificate(&cluster, &outer, "plain", "plain.example");
    let mut plain = ingress("plain", "plain.example", "/", "Prefix", "plain", &[]);
    plain["spec"]["tls"] = json!([{"hosts": ["plain.example"], "secretName": "plain"}]);
    cluster.api.put(INGRESSES, plain);
    let annotation = [("ssl-passthrough", "true")];
    for (name, host, path, service) in [
        ("pass", "pass.example", "/", "pass"),
        ("wild", "*.wild.example", "/", "pass"),
        ("empty", "empty.example", "/", "empty"),
        ("path", "path.example", "/path", "plain"),
    ] {
        cluster.api.put(INGRESSES, ingress(name, host, path, "Prefix", service, &annotation));
    }
    // One unsuitable rule denies passthrough to all rules of its Ingress.
    let mut partial = ingress("partial", "suitable.example", "/", "Prefix", "pass", &annotation);
    let unsuitable = ingress("partial", "unsuitable.example", "/path", "Prefix", "pass", &annotation);
    let rule = unsuitable["spec"]["rules"][0].clone();
    partial["spec"]["rules"].as_array_mut().unwrap().push(rule);
    cluster.api.put(INGRESSES, partial);
    cluster.start();
    let text = cluster.config();
    let log = cluster.log();
    assert_eq!(https(&cluster.https, &inner, "pass.example").ok().as_deref(), Some("first"), "{text}\n{log}");
    let response = https(&cluster.https, &outer, "plain.example").unwrap();
    assert!(response.contains("pod-plain") && response.contains("X-Real-IP: 127.0.0.1\r\n"), "{response}");
    let wild = secured_pod(&inner, "a.wild.example", "wild");
    assert!(https(&cluster.https, &inner, "empty.example").is_err());
    assert_eq!(cluster.get("path.example", "/path").status, 503);
    assert!(https(&cluster.https, &inner, "suitable.example").is_err());
    assert_eq!(cluster.get("suitable.example", "/").status, 503);
    cluster.wait_log("\"ssl-passthrough\" needs a host with a service for the path \"/\"");

    let reloads = cluster.reloads();
    service(&cluster, "pass", "TCP", &[wild]);
    let has = |host: &str| https(&cluster.https, &inner, host).is_ok_and(|text| text == "wild");
    assert!(wait::until(wait::TIMEOUT, || has("a.wild.example")), "{}", cluster.log());
    assert!(https(&cluster.https, &inner, "b.a.wild.example").is_err());
    assert_eq!(cluster.reloads(), reloads, "{}", cluster.log());

    // Without such an Ingress, the port belongs to HTTPS again.
    for name in ["pass", "wild", "empty", "path", "partial"] {
        cluster.api.delete(INGRESSES, &format!("shop/{name}"));
    }
    assert!(wait::until(wait::TIMEOUT, || !cluster.config().contains("https.sock")), "{}", cluster.log());
    cluster.wait_log("configuration loaded");
    let served = wait::until(wait::TIMEOUT, || {
        https(&cluster.https, &outer, "plain.example").is_ok_and(|text| text.contains("pod-plain"))
    });
    assert!(served, "{}\n{}", cluster.config(), cluster.log());
}

#[test]
fn passed_tls_has_the_address_of_the_proxy_protocol() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let inner = Authority::new();
    let pod = Pod::start("pod-plain");
    cluster.service("shop", "plain", &[&pod]);
    service(&cluster, "pass", "TCP", &[secured_pod(&inner, "pass.example", "passed")]);
    cluster.set(&[("use-proxy-protocol", "true")]);
    cluster.api.put(INGRESSES, ingress("plain", "plain.example", "/", "Prefix", "plain", &[]));
    let annotation = [("ssl-passthrough", "true")];
    cluster.api.put(INGRESSES, ingress("pass", "pass.example", "/", "Prefix", "pass", &annotation));
    cluster.start();
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n";
    let any = tw_tls::client_config(None).unwrap();
    for (authority, host, expected) in
        [(Some(&inner), "pass.example", "passed"), (None, "plain.example", "X-Real-IP: 192.0.2.1\r\n")]
    {
        let config =
            authority.map_or_else(|| any.clone(), |authority| authority.client(rustls::ALL_VERSIONS));
        let mut client = Client::connect_tls_behind(local(&cluster.https), header, &config, host).unwrap();
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
        let text = client.read_response().unwrap().text();
        assert!(text.contains(expected), "{host}: {text}\n{}", cluster.log());
    }
}

#[test]
fn port_in_use_concerns_only_its_listener() {
    let Some(mut cluster) = Cluster::new(&["--tcp-services-configmap", "system/tcp"]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    let busy = Port::reserve().unwrap();
    let free = Port::reserve().unwrap();
    let occupied = TcpListener::bind(local(&busy)).unwrap();
    class(&cluster);
    gateway(
        &cluster,
        json!([
            {"name": "busy", "port": busy.number(), "protocol": "HTTP"},
            {"name": "free", "port": free.number(), "protocol": "HTTP"},
        ]),
    );
    route(&cluster, "shop", "web", &["shop.example"], json!([{"backendRefs": to("web")}]));
    cluster.start();
    let status = |port: &Port| {
        let mut client = Client::connect(local(port)).ok()?;
        client.send("GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n").ok()?;
        client.read_response().ok().map(|response| response.status)
    };
    assert_eq!(status(&free), Some(200), "{}\n{}", cluster.log(), cluster.config());
    cluster.wait_log(&format!("TCP port {} cannot be listened on", busy.number()));
    expect_condition(&cluster, "gateways/front", "Accepted", "False", "PortUnavailable");
    expect_condition(&cluster, "gateways/front", "Accepted", "True", "ListenersNotValid");
    // Later changes are loaded, also those with another port that is in use.
    let also_busy = Port::reserve().unwrap();
    let also_occupied = TcpListener::bind(local(&also_busy)).unwrap();
    map(&cluster, "tcp", json!({also_busy.number().to_string(): "shop/web:80"}));
    cluster.wait_log(&format!("TCP port {} is not served: ", also_busy.number()));
    cluster.api.put(INGRESSES, ingress("late", "late.example", "/", "Prefix", "web", &[]));
    cluster.expect("late.example", "/", 200, "pod-a");
    assert!(!cluster.log().contains("the configuration in use stays"), "{}", cluster.log());
    let reloads = cluster.reloads();
    drop((occupied, also_occupied));
    let is_served = || status(&busy) == Some(200) && status(&also_busy) == Some(200);
    assert!(wait::until(3 * wait::TIMEOUT, is_served), "{}", cluster.log());
    assert!(cluster.reloads() > reloads);
    let served = wait::until(wait::TIMEOUT, || {
        let seen_values = cluster.api.requests("PATCH", "gateways/front");
        seen_values.last().is_some_and(|json| !json.to_string().contains("PortUnavailable"))
    });
    assert!(served, "{}", cluster.log());

    // A controller that begins with the configuration of an earlier run does without the port, too.
    cluster.kill();
    let occupied = wait::some(wait::TIMEOUT, || TcpListener::bind(local(&busy)).ok());
    assert!(occupied.is_some());
    cluster.start();
    assert_eq!(status(&free), Some(200), "{}\n{}", cluster.log(), cluster.config());
    cluster.expect("late.example", "/", 200, "pod-a");
}

#[test]
fn tls_routes_change_their_endpoints_without_a_reload() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let authority = Authority::new();
    let first = secured_pod(&authority, "tls.example", "first");
    service(&cluster, "web", "TCP", &[first]);
    service(&cluster, "other", "TCP", &[secured_pod(&authority, "a.other.example", "other")]);
    class(&cluster);
    let port = Port::reserve().unwrap();
    gateway(
        &cluster,
        json!([{"name": "pass", "port": port.number(), "protocol": "TLS", "tls": {"mode": "Passthrough"}}]),
    );
    for (name, host, service) in [("tls", "tls.example", "web"), ("other", "*.other.example", "other")] {
        put(
            &cluster,
            "tlsroutes",
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "metadata": {"name": name, "namespace": "shop", "generation": 1},
                "spec": {"parentRefs": [{"name": "front"}], "hostnames": [host], "rules": [{"backendRefs": to(service)}]},
            }),
        );
    }
    cluster.start();
    let text = |host: &str| https(&port, &authority, host).ok();
    assert_eq!(text("tls.example").as_deref(), Some("first"), "{}\n{}", cluster.config(), cluster.log());
    assert_eq!(text("a.other.example").as_deref(), Some("other"));
    assert_eq!(text("unknown.example"), None);
    let reloads = cluster.reloads();
    service(&cluster, "web", "TCP", &[secured_pod(&authority, "tls.example", "second")]);
    let changed = wait::until(wait::TIMEOUT, || text("tls.example").as_deref() == Some("second"));
    assert!(changed, "{}", cluster.log());
    assert_eq!(cluster.reloads(), reloads, "{}", cluster.log());
}

/// Puts a route of one of the kinds of streams.
fn stream_route(cluster: &Cluster, plural: &str, name: &str, spec: &Value) {
    let mut spec = spec.clone();
    spec["parentRefs"] = json!([{"name": "front"}]);
    put(
        cluster,
        plural,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "metadata": {"name": name, "namespace": "shop", "generation": 1, "creationTimestamp": name},
            "spec": spec,
        }),
    );
}

#[test]
fn tcp_and_udp_routes_share_a_number_and_the_oldest_route_is_served() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    service(&cluster, "first", "TCP", &[speaker("first")]);
    service(&cluster, "second", "TCP", &[speaker("second")]);
    service(&cluster, "late", "TCP", &[speaker("late")]);
    service(&cluster, "dns", "UDP", &[datagrams("dns")]);
    class(&cluster);
    let port = Port::reserve().unwrap();
    gateway(
        &cluster,
        json!([
            {"name": "tcp", "port": port.number(), "protocol": "TCP"},
            {"name": "udp", "port": port.number(), "protocol": "UDP"},
        ]),
    );
    let both =
        json!([{"name": "first", "port": 80, "weight": 1}, {"name": "second", "port": 80, "weight": 1}]);
    stream_route(&cluster, "tcproutes", "a", &json!({"rules": [{"backendRefs": both}]}));
    stream_route(&cluster, "tcproutes", "b", &json!({"rules": [{"backendRefs": to("late")}]}));
    stream_route(&cluster, "udproutes", "u", &json!({"rules": [{"backendRefs": to("dns")}]}));
    // A service over TCP is no backend of datagrams.
    stream_route(&cluster, "udproutes", "v", &json!({"rules": [{"backendRefs": to("first")}]}));
    cluster.start();
    let read = || {
        let mut text = String::new();
        TcpStream::connect(local(&port)).unwrap().read_to_string(&mut text).unwrap();
        text
    };
    let texts: Vec<_> = (0..40).map(|_| read()).collect();
    let count = |name: &str| texts.iter().filter(|text| *text == name).count();
    let (first, second) = (count("first"), count("second"));
    assert!(first > 3 && second > 3 && first + second == 40, "{texts:?}\n{}", cluster.config());
    assert_eq!(ask(&port, "query").as_deref(), Some("dns query"), "{}", cluster.config());
    expect_condition(&cluster, "tcproutes/b", "Accepted", "True", "Accepted");
    expect_condition(&cluster, "udproutes/u", "ResolvedRefs", "True", "ResolvedRefs");
    expect_condition(&cluster, "udproutes/v", "ResolvedRefs", "False", "BackendNotFound");
    cluster.wait_log("listener \"tcp\" belongs to an older route");
    let is_announced = |json: &Value| {
        let names: Vec<_> = json["status"]["supportedFeatures"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|f| &f["name"])
            .collect();
        names.contains(&&json!("TCPRoute")) && names.contains(&&json!("UDPRoute"))
    };
    let patches = cluster.api.requests("PATCH", "gatewayclasses/tailwater");
    assert!(patches.last().is_some_and(is_announced), "{patches:#?}");
}

/// Starts the controller with a TLSRoute from `tls.example` to the service `web`, and expects its response at a port.
fn expect_tls_route(cluster: &mut Cluster, authority: &Authority, port: &Port) {
    let spec = json!({"hostnames": ["tls.example"], "rules": [{"backendRefs": to("web")}]});
    stream_route(cluster, "tlsroutes", "a", &spec);
    cluster.start();
    let text = https(port, authority, "tls.example");
    assert!(text.as_ref().is_ok_and(|text| text.contains("pod-a")), "{text:?}\n{}", cluster.config());
}

#[test]
fn tls_routes_end_tls_with_the_certificate_of_the_listener() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let authority = Authority::new();
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    certificate(&cluster, &authority, "cert", "tls.example");
    class(&cluster);
    let port = Port::reserve().unwrap();
    let listener = |name: &str, mode: &str, host: &str| {
        json!({"name": name, "port": port.number(), "protocol": "TLS", "hostname": host,
            "tls": {"mode": mode, "certificateRefs": [{"name": "cert"}]}})
    };
    gateway(
        &cluster,
        json!([listener("end", "Terminate", "tls.example"), listener("pass", "Passthrough", "pass.example")]),
    );
    expect_tls_route(&mut cluster, &authority, &port);
    assert!(https(&port, &authority, "other.example").is_err());
    // A port either decrypts or passes through.
    expect_condition(&cluster, "gateways/front", "Conflicted", "True", "ProtocolConflict");
    expect_condition(&cluster, "tlsroutes/a", "Accepted", "True", "Accepted");
}

#[test]
fn listener_that_asks_for_client_certificates_is_not_served_without_them() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let authority = Authority::new();
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    certificate(&cluster, &authority, "cert", "tls.example");
    class(&cluster);
    let [mutual, plain] = [(); 2].map(|()| Port::reserve().unwrap());
    let listener = |name: &str, port: &Port, validation: Value| {
        json!({"name": name, "port": port.number(), "protocol": "TLS", "hostname": "tls.example",
            "tls": {"mode": "Terminate", "certificateRefs": [{"name": "cert"}], "frontendValidation": validation}})
    };
    let validation = json!({"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]});
    gateway(
        &cluster,
        json!([listener("mutual", &mutual, validation), listener("plain", &plain, json!(null))]),
    );
    expect_tls_route(&mut cluster, &authority, &plain);
    assert!(https(&mutual, &authority, "tls.example").is_err());
    expect_condition(&cluster, "gateways/front", "Accepted", "False", "UnsupportedValue");
}
