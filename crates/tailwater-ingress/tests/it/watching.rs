//! The API server forgets versions, breaks connections, and goes away.

use tw_testkit::wait;

use crate::cluster::{Cluster, INGRESSES, Pod, ingress};

#[test]
fn forgotten_versions_are_listed_again() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    for number in 0..5 {
        let name = format!("web-{number}");
        cluster.api.put(INGRESSES, ingress(&name, &format!("{name}.example"), "/", "Prefix", "web", &[]));
    }
    cluster.start();
    // Several pages.
    cluster.expect("web-4.example", "/", 200, "pod-a");
    let lists = cluster.api.count("ingresses?limit=");
    cluster.api.forget();
    assert!(
        wait::until(wait::TIMEOUT, || cluster.api.count("ingresses?limit=") > lists),
        "{}",
        cluster.log()
    );
    cluster.api.put(INGRESSES, ingress("late", "late.example", "/", "Prefix", "web", &[]));
    cluster.expect("late.example", "/", 200, "pod-a");
}

#[test]
fn server_goes_on_while_the_api_server_is_away() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    cluster.api.put(INGRESSES, ingress("web", "shop.example", "/", "Prefix", "web", &[]));
    cluster.start();
    cluster.expect("shop.example", "/", 200, "pod-a");
    cluster.api.set_down(true);
    cluster.wait_log("next attempt in 500 ms");
    cluster.expect("shop.example", "/", 200, "pod-a");

    // A new controller serves the configuration of the previous one.
    cluster.kill();
    cluster.spawn();
    cluster.wait_log("starting with the configuration of an earlier run");
    assert!(wait::until(wait::TIMEOUT, || cluster.probe() == Some(200)), "{}", cluster.log());
    cluster.expect("shop.example", "/", 200, "pod-a");

    cluster.api.set_down(false);
    cluster.api.put(INGRESSES, ingress("late", "late.example", "/", "Prefix", "web", &[]));
    cluster.expect("late.example", "/", 200, "pod-a");
    cluster.expect("shop.example", "/", 200, "pod-a");
}

#[test]
fn probe_fails_before_all_objects_were_read() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    cluster.api.set_down(true);
    cluster.spawn();
    assert!(wait::until(wait::TIMEOUT, || cluster.probe() == Some(503)), "{}", cluster.log());
    cluster.api.set_down(false);
    assert!(wait::until(wait::TIMEOUT, || cluster.probe() == Some(200)), "{}", cluster.log());
}
