//! Routes of the Gateway API through everything.

use std::sync::Arc;

use serde_json::{Value, json};
use tw_testkit::http2::Http2;
use tw_testkit::http2_origin::{http2_origin, trailers};
use tw_testkit::wait;

use crate::cluster::{Cluster, INGRESSES, Pod, SERVICES, ingress, local};

const GROUP: &str = "/apis/gateway.networking.k8s.io";

pub fn put(cluster: &Cluster, plural: &str, object: Value) {
    cluster.api.put(&format!("{GROUP}/v1/{plural}"), object);
}

pub fn class(cluster: &Cluster) {
    put(
        cluster,
        "gatewayclasses",
        json!({"metadata": {"name": "tailwater", "generation": 1}, "spec": {"controllerName": "tailwater.io/gateway-controller"}}),
    );
}

pub fn gateway(cluster: &Cluster, listeners: Value) {
    put(
        cluster,
        "gateways",
        json!({
            "metadata": {"name": "front", "namespace": "shop", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"gatewayClassName": "tailwater", "listeners": listeners},
        }),
    );
}

pub fn route(cluster: &Cluster, namespace: &str, name: &str, hosts: &[&str], rules: Value) {
    put(
        cluster,
        "httproutes",
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"parentRefs": [{"name": "front", "namespace": "shop"}], "hostnames": hosts, "rules": rules},
        }),
    );
}

pub fn to(service: &str) -> Value {
    json!([{"name": service, "port": 80}])
}

fn http() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "HTTP"}])
}

/// Waits for a condition that the controller writes to an object.
pub fn expect_condition(cluster: &Cluster, target: &str, kind: &str, status: &str, reason: &str) {
    let has = |json: &Value| -> bool {
        let mut lists = vec![&json["status"]["conditions"]];
        let parents = json["status"]["parents"].as_array().into_iter().flatten();
        lists.extend(parents.map(|parent| &parent["conditions"]));
        let listeners = json["status"]["listeners"].as_array().into_iter().flatten();
        lists.extend(listeners.map(|listener| &listener["conditions"]));
        lists.iter().flat_map(|list| list.as_array()).flatten().any(|condition| {
            condition["type"] == kind && condition["status"] == status && condition["reason"] == reason
        })
    };
    let mut seen_values = Vec::new();
    let is_found = wait::until(wait::TIMEOUT, || {
        seen_values = cluster.api.requests("PATCH", target);
        seen_values.last().is_some_and(has)
    });
    assert!(is_found, "{target}: {kind} {status} {reason}: {seen_values:#?}\n{}", cluster.log());
}

#[test]
fn matches_have_their_precedence_and_endpoints_need_no_reload() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let names = ["pod-exact", "pod-long", "pod-root", "pod-header", "pod-query", "pod-regex", "pod-post"];
    let pods: Vec<_> = names.iter().map(|name| Pod::start(name)).collect();
    for (name, pod) in names.iter().zip(&pods) {
        cluster.service("shop", name, &[pod]);
    }
    class(&cluster);
    gateway(&cluster, http());
    let path = |kind: &str, value: &str| json!({"type": kind, "value": value});
    route(
        &cluster,
        "shop",
        "web",
        &["shop.example"],
        json!([
            {"backendRefs": to("pod-root")},
            {"matches": [{"path": path("PathPrefix", "/a")}], "backendRefs": to("pod-long")},
            {"matches": [{"path": path("Exact", "/a")}], "backendRefs": to("pod-exact")},
            {"matches": [{"headers": [{"name": "X-Version", "value": "2"}]}], "backendRefs": to("pod-header")},
            {"matches": [{"path": path("PathPrefix", "/a"), "queryParams": [{"name": "color", "value": "dark blue"}]}], "backendRefs": to("pod-query")},
            {"matches": [{"path": path("RegularExpression", "/r/[0-9]+")}], "backendRefs": to("pod-regex")},
            {"matches": [{"path": path("PathPrefix", "/a"), "method": "POST"}], "backendRefs": to("pod-post")},
        ]),
    );
    cluster.start();
    cluster.expect("shop.example", "/", 200, "pod-root");
    for (request, expected) in [
        ("GET /a", "pod-exact"),
        ("GET /a/b", "pod-long"),
        ("GET /ab", "pod-root"),
        ("GET /a/b?x=1&color=dark+blue", "pod-query"),
        ("GET /a/b?color=dark%20blues", "pod-long"),
        ("GET /r/12", "pod-regex"),
        ("GET /r/12/x", "pod-root"),
        ("POST /a/b?color=dark%20blue", "pod-post"),
    ] {
        let text = cluster
            .request(&format!("{request} HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n"))
            .text();
        assert!(text.starts_with(&format!("{expected}\n")), "{request}: {text}\n{}", cluster.config());
    }
    for (path, version, expected) in [
        ("/x", "2", "pod-header"),
        ("/x", "22", "pod-root"),
        ("/a", "2", "pod-exact"),
        ("/a/b", "2", "pod-long"),
    ] {
        let text = cluster
            .request(&format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\nX-Version: {version}\r\n\r\n"))
            .text();
        assert!(text.starts_with(&format!("{expected}\n")), "{path} {version}: {text}\n{}", cluster.config());
    }
    assert_eq!(cluster.get("other.example", "/").status, 404);

    let reloads = cluster.reloads();
    cluster.endpoints("shop", "pod-root", &[&pods[1]]);
    cluster.expect("shop.example", "/", 200, "pod-long");
    assert_eq!(cluster.reloads(), reloads, "{}", cluster.log());
}

#[test]
fn filters_change_requests_and_answers() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let (pod, copy) = (Pod::start("pod-a"), Pod::start("pod-copy"));
    cluster.service("shop", "web", &[&pod]);
    cluster.service("shop", "copy", &[&copy]);
    class(&cluster);
    gateway(&cluster, http());
    let rule = |path: &str, filters: Value| json!({"matches": [{"path": {"type": "PathPrefix", "value": path}}], "filters": filters, "backendRefs": to("web")});
    route(
        &cluster,
        "shop",
        "web",
        &["shop.example"],
        json!([
            rule("/fields", json!([
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "X-Set", "value": "a;b\"c"}], "add": [{"name": "X-Add", "value": "two"}], "remove": ["X-Gone"]}},
                {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "X-Answer", "value": "yes"}]}},
            ])),
            rule("/old", json!([{"type": "URLRewrite", "urlRewrite": {"hostname": "inner.example", "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}}])),
            rule("/full", json!([{"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/one"}}}])),
            rule("/moved", json!([{"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "hostname": "to.example", "statusCode": 301, "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/there"}}}])),
            rule("/mirror", json!([{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "copy", "port": 80}}}])),
            rule("/odd", json!([{"type": "CORS"}])),
            {"matches": [{"path": {"type": "PathPrefix", "value": "/half"}}], "backendRefs": [{"name": "web", "port": 80, "weight": 1}, {"name": "missing", "port": 80, "weight": 1}]},
        ]),
    );
    cluster.start();
    cluster.expect("shop.example", "/fields", 200, "pod-a");
    let response =
        cluster.request("GET /fields HTTP/1.1\r\nHost: shop.example\r\nX-Add: one\r\nX-Gone: 1\r\n\r\n");
    assert_eq!(response.field("x-answer"), Some("yes"));
    let head = response.text();
    assert!(head.contains("X-Set: a;b\"c\r\n") && head.contains("X-Add: one,two\r\n"), "{head}");
    assert!(!head.to_ascii_lowercase().contains("x-gone"), "{head}");
    let head = cluster.get("shop.example", "/old/x?y=1").text();
    assert!(head.contains("GET /new/x?y=1 ") && head.contains("Host: inner.example"), "{head}");
    assert!(cluster.get("shop.example", "/old").text().contains("GET /new "));
    assert!(cluster.get("shop.example", "/full/x").text().contains("GET /one "));
    let moved = cluster.get("shop.example", "/moved/x?y=1");
    assert_eq!((moved.status, moved.field("location")), (301, Some("https://to.example/there/x?y=1")));
    cluster.expect("shop.example", "/mirror", 200, "pod-a");
    assert!(wait::until(wait::TIMEOUT, || copy.count() > 0));
    assert_eq!(cluster.get("shop.example", "/odd").status, 500);
    let statuses: Vec<_> = (0..60).map(|_| cluster.get("shop.example", "/half").status).collect();
    let good = statuses.iter().filter(|status| **status == 200).count();
    let bad = statuses.iter().filter(|status| **status == 500).count();
    assert!(good > 5 && bad > 5 && good + bad == 60, "{statuses:?}");
    expect_condition(&cluster, "httproutes/web", "PartiallyInvalid", "True", "UnsupportedValue");
    expect_condition(&cluster, "httproutes/web", "ResolvedRefs", "False", "BackendNotFound");
    expect_condition(&cluster, "gateways/front", "Programmed", "True", "Programmed");
    expect_condition(&cluster, "gatewayclasses/tailwater", "Accepted", "True", "Accepted");
}

#[test]
fn mirrors_copy_a_share_and_backends_speak_http2() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let (pod, some, none) = (Pod::start("pod-a"), Pod::start("pod-some"), Pod::start("pod-none"));
    for (name, pod) in [("web", &pod), ("some", &some), ("none", &none)] {
        cluster.service("shop", name, &[pod]);
    }
    cluster.service("shop", "h2c", &[&Pod { addr: http2_pod(), count: Arc::default() }]);
    let port = json!({"name": "web", "port": 80, "appProtocol": "kubernetes.io/h2c"});
    cluster.api.put(
        SERVICES,
        json!({"metadata": {"name": "h2c", "namespace": "shop"}, "spec": {"clusterIP": "127.0.0.1", "ports": [port]}}),
    );
    class(&cluster);
    gateway(&cluster, http());
    let copy = |service: &str, percent: u32| json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": service, "port": 80}, "percent": percent}});
    let path = |path: &str| json!([{"path": {"type": "PathPrefix", "value": path}}]);
    let both = json!([{"name": "h2c", "port": 80}, {"name": "web", "port": 80}]);
    route(
        &cluster,
        "shop",
        "web",
        &["shop.example"],
        json!([
            {"filters": [copy("some", 50), copy("none", 0)], "backendRefs": to("web")},
            {"matches": path("/h2c"), "backendRefs": to("h2c")},
            {"matches": path("/both"), "backendRefs": both},
        ]),
    );
    cluster.start();
    cluster.expect("shop.example", "/", 200, "pod-a");
    for _ in 0..80 {
        assert_eq!(cluster.get("shop.example", "/").status, 200);
    }
    let served = pod.count();
    assert!(wait::until(wait::TIMEOUT, || some.count() > 10), "{}", cluster.config());
    assert!(some.count() + 10 < served, "{} of {served}", some.count());
    assert_eq!(none.count(), 0);
    let response = cluster.get("shop.example", "/h2c/x");
    assert_eq!((response.status, &*response.text()), (200, "http2 /h2c/x"), "{}", cluster.log());
    assert_eq!(cluster.get("shop.example", "/both").status, 500);
    expect_condition(&cluster, "gatewayclasses/tailwater", "Accepted", "True", "Accepted");
}

/// Pod that speaks HTTP/2 without TLS: its answer has the path.
fn http2_pod() -> std::net::SocketAddr {
    http2_origin(h2::server::Builder::new(), move |mut request| async move {
        let path = request.head.uri().path().to_owned();
        let mut body = request.begin(200, &[("content-type", "text/plain")]);
        let _ = body.send_data(format!("http2 {path}").into(), true);
    })
}

#[test]
fn other_namespaces_need_permission_and_broken_routes_concern_themselves() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let (pod, secret) = (Pod::start("pod-a"), Pod::start("pod-secret"));
    cluster.service("shop", "web", &[&pod]);
    cluster.service("vault", "web", &[&secret]);
    class(&cluster);
    gateway(&cluster, http());
    route(&cluster, "shop", "web", &["shop.example"], json!([{"backendRefs": to("web")}]));
    route(
        &cluster,
        "shop",
        "vault",
        &["vault.example"],
        json!([{"backendRefs": [{"name": "web", "namespace": "vault", "port": 80}]}]),
    );
    route(&cluster, "vault", "foreign", &["foreign.example"], json!([{"backendRefs": to("web")}]));
    cluster.start();
    cluster.expect("shop.example", "/", 200, "pod-a");
    assert_eq!(cluster.get("vault.example", "/").status, 500);
    assert_eq!(cluster.get("foreign.example", "/").status, 404);
    expect_condition(&cluster, "httproutes/vault", "ResolvedRefs", "False", "RefNotPermitted");
    expect_condition(&cluster, "httproutes/foreign", "Accepted", "False", "NotAllowedByListeners");
    put(
        &cluster,
        "referencegrants",
        json!({"metadata": {"name": "g", "namespace": "vault"}, "spec": {
            "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop"}],
            "to": [{"group": "", "kind": "Service"}],
        }}),
    );
    cluster.expect("vault.example", "/", 200, "pod-secret");

    // The server refuses this one.
    route(
        &cluster,
        "shop",
        "broken",
        &["broken.example"],
        json!([{"matches": [{"path": {"type": "RegularExpression", "value": "/(("}}], "backendRefs": to("web")}]),
    );
    expect_condition(&cluster, "httproutes/broken", "Accepted", "False", "UnsupportedValue");
    route(&cluster, "shop", "late", &["late.example"], json!([{"backendRefs": to("web")}]));
    cluster.expect("late.example", "/", 200, "pod-a");

    // An Ingress beside it; a host belongs to it as long as it is there.
    cluster.api.put(INGRESSES, ingress("in", "in.example", "/", "Prefix", "web", &[]));
    cluster.expect("in.example", "/", 200, "pod-a");
    cluster.expect("shop.example", "/", 200, "pod-a");
}

#[test]
fn tls_routes_are_written_and_missing_certificates_are_told() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    class(&cluster);
    let tls = tw_testkit::ports::Port::reserve().unwrap();
    gateway(
        &cluster,
        json!([
            {"name": "pass", "port": tls.number(), "protocol": "TLS", "tls": {"mode": "Passthrough"}},
            {"name": "none", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "missing"}]}},
        ]),
    );
    put(
        &cluster,
        "tlsroutes",
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "metadata": {"name": "tls", "namespace": "shop", "generation": 1},
            "spec": {"parentRefs": [{"name": "front"}], "hostnames": ["tls.example"], "rules": [{"backendRefs": to("web")}]},
        }),
    );
    cluster.start();
    assert!(
        wait::until(wait::TIMEOUT, || cluster.config().contains("tls.example shop_web_80;")),
        "{}\n{}",
        cluster.config(),
        cluster.log()
    );
    expect_condition(&cluster, "tlsroutes/tls", "Accepted", "True", "Accepted");
    expect_condition(&cluster, "gateways/front", "ResolvedRefs", "False", "InvalidCertificateRef");
}

#[test]
fn clusters_without_the_api_are_served() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    cluster.api.set_absent(&["gateway.networking.k8s.io", "/api/v1/namespaces"]);
    cluster.api.put(INGRESSES, ingress("in", "in.example", "/", "Prefix", "web", &[]));
    cluster.start();
    cluster.expect("in.example", "/", 200, "pod-a");
    cluster.wait_log("httproutes: status 404: served without them");
    // The newest version is asked for first.
    cluster.wait_log("gateway.networking.k8s.io/v1alpha2/tlsroutes: status 404");
    assert_eq!(cluster.api.count("/v1alpha3/tlsroutes"), 1);
}

/// Pod that speaks gRPC: its name and the path as the message, and a status.
fn grpc_pod(name: &'static str) -> std::net::SocketAddr {
    http2_origin(h2::server::Builder::new(), move |mut request| async move {
        let path = request.head.uri().path().to_owned();
        let mut body = request.begin(200, &[("content-type", "application/grpc")]);
        let _ = body.send_data(format!("{name} {path}").into(), false);
        let _ = body.send_trailers(trailers(&[("grpc-status", "0"), ("grpc-message", "fine")]));
    })
}

#[test]
fn grpc_routes_choose_by_method_and_field() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let names = ["say", "service", "field", "rest"];
    for name in names {
        let pods = [&Pod { addr: grpc_pod(name), count: Arc::default() }];
        cluster.service("shop", name, &pods);
    }
    class(&cluster);
    gateway(&cluster, http());
    let method = |method: Value| json!([{"method": method}]);
    put(
        &cluster,
        "grpcroutes",
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "metadata": {"name": "grpc", "namespace": "shop", "generation": 1},
            "spec": {"parentRefs": [{"name": "front"}], "hostnames": ["localhost"], "rules": [
                {"backendRefs": to("rest")},
                {"matches": method(json!({"service": "echo.Echo"})), "backendRefs": to("service")},
                {"matches": method(json!({"service": "echo.Echo", "method": "Say"})), "backendRefs": to("say")},
                {"matches": [{"headers": [{"name": "x-kind", "value": "a"}]}], "backendRefs": to("field")},
            ]},
        }),
    );
    cluster.start();
    let call = |path: &str, fields: &[(&str, &str)]| {
        let mut client = Http2::connect(local(&cluster.http)).unwrap();
        let fields = [&[("te", "trailers"), ("content-type", "application/grpc")], fields].concat();
        client.request("POST", path, &fields, b"\0\0\0\0\0").unwrap()
    };
    for (path, fields, expected) in [
        ("/echo.Echo/Say", &[][..], "say /echo.Echo/Say"),
        ("/echo.Echo/Other", &[], "service /echo.Echo/Other"),
        ("/other.Service/Say", &[], "rest /other.Service/Say"),
        ("/other.Service/Say", &[("x-kind", "a")], "field /other.Service/Say"),
    ] {
        let answer = call(path, fields);
        assert_eq!(
            (answer.status, &*answer.text()),
            (200, expected),
            "{path}: {answer:?}\n{}\n{}",
            cluster.config(),
            cluster.log()
        );
        let status = answer.trailers.as_ref().and_then(|fields| fields.get("grpc-status"));
        assert_eq!(status.map(|value| value.as_bytes()), Some(&b"0"[..]), "{answer:?}");
    }
    expect_condition(&cluster, "grpcroutes/grpc", "Accepted", "True", "Accepted");
}
