//! For unit tests of what serves HTTP: configurations, and requests on a real connection of a real loop, routed by a configuration but
//! not run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, TcpStream};
use std::sync::{Arc, mpsc};

use tokio::net::TcpListener;
use tw_conf::{Diagnostics, MemoryFiles, Reader, Tree};
use tw_core::config_thread::ConfigThread;
use tw_core::event_loop::{Counts, LoopConfiguration, LoopCore};
use tw_core::pools::Disks;
use tw_core::shared_objects::SharedObjects;
use tw_disk::Pool;
use tw_http::Progress;
use tw_net::Transport;
use tw_net::listen::SocketKind;
use tw_rt::{FirstBytes, LoopOptions, Socket};

use tw_core::load::Prefixes;
use tw_http_versions::h1;
use tw_phases::start;
use tw_request::client::Client;
use tw_request::generation::Generation;
use tw_request::request::{After, Request, RequestWire};
use tw_request::vars::{Template, Value, VarTable};
pub use tw_server::http::new_loop;
use tw_server::load::load;

/// Loads `http { CONF }`.
pub fn generation(conf: &str) -> Generation {
    try_generation(conf).unwrap_or_else(|error| panic!("{error}"))
}

/// Loads `http { CONF }`; the error is a line of the log.
pub fn try_generation(conf: &str) -> Result<Generation, String> {
    let mut tree = Tree::default();
    let text = format!("events {{ }} http {{ {conf} }}");
    Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"test.conf", text.as_bytes()).unwrap();
    let prefixes = Prefixes {
        prefix: b"/prefix/".to_vec(),
        conf: b"/prefix/".to_vec(),
        error_log: b"stderr".to_vec(),
        hostname: b"host.example".to_vec(),
    };
    let config = load(
        &mut tree,
        &MemoryFiles::default(),
        &prefixes,
        &[],
        &SharedObjects::default(),
        &mut Diagnostics::default(),
    )
    .map_err(|error| error.line(&tree.sources).to_string())?;
    let disks = Disks::new([Pool::with_defaults().unwrap()], config.process.ring).into();
    Ok(Generation { id: 1, config, disks })
}

/// Lets `look` see a request with this head, which a client at 127.0.0.1 sent to the first address of `conf`.
pub fn with_request<T: Send + 'static>(
    conf: &str,
    head: &str,
    look: impl FnOnce(&mut Request) -> T + Send + 'static,
) -> T {
    with_request_of(generation(conf), head, look)
}

/// As [`with_request`], with a configuration that was loaded already.
pub fn with_request_of<T: Send + 'static>(
    generation: Generation,
    head: &str,
    look: impl FnOnce(&mut Request) -> T + Send + 'static,
) -> T {
    let head = head.to_owned();
    let generation = ConfigThread::start(|| {}).unwrap().publish(generation);
    let (sender, receiver) = mpsc::channel();
    let looped = tw_rt::LoopThread::<()>::start(LoopOptions::new(0), move |_| async move {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let listen = std::rc::Rc::new(generation.groups[0].address.clone());
        let core = LoopCore::new(3, Arc::new(Counts::default()), generation.process());
        let event_loop = new_loop(core, generation);
        let client = Client::new(42, peer.into(), listen, SocketKind::Stream, event_loop.clone());
        let socket = Socket::tcp(stream.into_std().unwrap().into(), FirstBytes::Later);
        let conn = h1::Http1Connection::new(client.clone(), Transport::Plain(socket));
        let mut r = event_loop.take_request();
        r.bind(&client, RequestWire::new(conn.clone()));
        r.begin();
        r.head.push(head.as_bytes());
        let limits = r.generation().server(r.route.server).settings.head;
        if let Ok(Progress::Complete) = r.head.parse(&limits) {
            let generation = r.generation().clone();
            start::choose_server(&mut r, &generation.groups[0]);
            r.state.after = if r.head.keep_alive() { After::KeepAlive } else { After::Close };
            h1::begin_body(&conn, &mut r);
            start::set_uri(&mut r);
        }
        let outcome = look(&mut r);
        event_loop.give_back(r);
        let _ = sender.send(outcome);
    })
    .unwrap();
    looped.join().unwrap();
    receiver.recv().unwrap()
}

/// The text of a template of the core's variables, with `-` for a missing value.
pub fn eval(r: &Request, template: &str) -> String {
    let mut vars = VarTable::new(tw_conf::NginxVariables::HTTP);
    tw_server::http::variables::VARIABLES.iter().for_each(|variables| vars.declare(variables));
    let template = Template::compile(template.as_bytes(), None, &mut vars).unwrap();
    vars.check().unwrap_or_else(|error| panic!("{}", error.message));
    let mut out = Vec::new();
    template.eval_each(r, &mut out, |out, _, value| {
        if value == Value::Missing {
            out.push(b'-');
        }
    });
    String::from_utf8(out).unwrap()
}
