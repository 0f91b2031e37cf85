//! Options as records.

use tw_base::command_line::{Kind, Opt, flag, with};

/// Purpose, after the usage.
pub const ABOUT: &str = "Serves the Ingress and Gateway objects of a Kubernetes cluster with Tailwater, which it starts and configures.";

/// All options.
pub const OPTIONS: &[Opt] = &[
    with(
        &["--controller-class"],
        ("name", Kind::Text),
        "controller of the classes that are served (default: tailwater.io/ingress-controller)",
        "",
    ),
    with(
        &["--gateway-controller"],
        ("name", Kind::Text),
        "controller of the classes of Gateway objects (default: tailwater.io/gateway-controller)",
        "",
    ),
    with(
        &["--ingress-class"],
        ("name", Kind::Text),
        "class in the annotation kubernetes.io/ingress.class (default: tailwater)",
        "",
    ),
    flag(&["--watch-ingress-without-class"], "serve Ingress objects without a class", ""),
    with(&["--watch-namespace"], ("namespace", Kind::Text), "only objects of this namespace", ""),
    with(
        &["--configmap"],
        ("namespace/name", Kind::Text),
        "settings of all servers, with the keys of ingress-nginx",
        "",
    ),
    with(
        &["--tcp-services-configmap"],
        ("namespace/name", Kind::Text),
        "map of TCP ports, each with namespace/service:port",
        "A value may go on with :PROXY for the PROXY protocol of clients, and a second one for that of endpoints.",
    ),
    with(
        &["--udp-services-configmap"],
        ("namespace/name", Kind::Text),
        "map of UDP ports, each with namespace/service:port",
        "",
    ),
    with(
        &["--default-backend-service"],
        ("namespace/name", Kind::Text),
        "service of requests that no Ingress has (default: 404)",
        "",
    ),
    with(
        &["--default-ssl-certificate"],
        ("namespace/name", Kind::Text),
        "secret with the certificate of hosts that have none",
        "",
    ),
    with(
        &["--publish-service"],
        ("namespace/name", Kind::Text),
        "service whose addresses go to the status of Ingress objects",
        "",
    ),
    with(
        &["--publish-status-address"],
        ("addresses", Kind::Text),
        "these addresses, separated by commas",
        "",
    ),
    with(
        &["--election-id"],
        ("name", Kind::Text),
        "Lease of the controller that writes the status (default: tailwater-ingress-leader)",
        "",
    ),
    flag(
        &["--allow-snippets"],
        "allow parts of the configuration in annotations",
        "Everyone who may write an Ingress can then read all secrets of the controller.",
    ),
    flag(
        &["--allow-cross-namespace"],
        "allow annotations to name secrets and config maps of other namespaces",
        "",
    ),
    with(&["--http-port"], ("address", Kind::Text), "port or address of HTTP (default: 8080)", ""),
    with(&["--https-port"], ("address", Kind::Text), "port or address of HTTPS (default: 8443)", ""),
    with(
        &["--status-port"],
        ("address", Kind::Text),
        "port or address of /healthz, /livez and /metrics (default: 10254)",
        "",
    ),
    with(
        &["--fleet-engine"],
        ("servers", Kind::Text),
        "nats://host:port,… or etcd://host:port,…: replicas share the rates of global-rate-limit",
        "",
    ),
    with(&["--fleet-credentials"], ("file", Kind::File), "credentials of the engine", ""),
    with(&["--fleet-node"], ("name", Kind::Text), "name of this replica (default: HOSTNAME)", ""),
    with(
        &["--modsecurity-rules"],
        ("file", Kind::File),
        "rules of the firewall for the annotation enable-modsecurity",
        "",
    ),
    with(
        &["--owasp-core-rules"],
        ("file", Kind::File),
        "rules for the annotation enable-owasp-core-rules: a file that includes those of the Core Rule Set",
        "",
    ),
    with(&["--resolver"], ("addresses", Kind::Text), "DNS servers (default: those of /etc/resolv.conf)", ""),
    with(
        &["--apiserver"],
        ("URL", Kind::Text),
        "API server (default: that of the cluster around the program)",
        "",
    ),
    with(&["--token-file"], ("file", Kind::File), "token for it", ""),
    with(&["--ca"], ("file", Kind::File), "authorities that are trusted for it, in PEM", ""),
    with(
        &["--tailwater"],
        ("file", Kind::File),
        "the server (default: tailwater, beside this program or in PATH)",
        "",
    ),
    with(
        &["--control"],
        ("file", Kind::File),
        "socket of the control API of a server that runs already",
        "Its configuration file must be nginx.conf in --dir, and it must have access to the directory.",
    ),
    with(
        &["--dir"],
        ("directory", Kind::Directory),
        "directory of the configuration (default: /run/tailwater-ingress)",
        "",
    ),
    flag(&["-v", "--version"], "show version and exit", ""),
    flag(&["-h", "-?", "--help"], "this help", ""),
];
