//! Explanation of a request (`--explain`): the phases up to the response, run for a synthetic request, step by step.
//!
//! Server, location and rewrites are found by the code that serves requests, on a loop of its own, so the result is that of a
//! server. Of the handlers after the rewrite phases, those that only look at files are run, and their redirects followed to the
//! response. The others are only named: they may ask other servers or change something.

mod explanation;
mod location;
mod response;
mod server;
mod steps;
mod synthetic_request;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tw_accept::{local_address, no_destination};
use tw_core::event_loop::{Counts, LoopConfiguration, LoopCore};
use tw_net::Addr;
use tw_rt::{Deadline, LoopOptions};
use tw_tls_settings::TlsInfo;

use crate::start;
use server::explain_server;
use steps::explain_steps;
use synthetic_request::{at_default_server, find_group, port_of_host, read, speaks_tls};
use tw_request::client::Client;
use tw_request::event_loop::Loop;
use tw_request::generation::GenerationRef;
use tw_request::request::RequestWire;

pub use explanation::{DetailedExplanation, Explanation, Line, RequestToExplain};

/// Longest time for all rewrite phases of one explanation; only a disk that stands still takes it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Port of a request if no server listens on an address with a port.
const DEFAULT_PORT: u16 = 80;

/// Makes the HTTP of a loop that serves requests by a configuration.
pub type NewLoop = fn(Rc<LoopCore>, GenerationRef) -> Rc<Loop>;

/// Explains requests by `generation`, which is not in use. Starts a thread with a loop, which `new_loop` makes, and ends it. The inner
/// errors are the reasons why there is nothing to explain.
///
/// # Errors
/// Failure to start the thread, or its early end.
pub fn explain(
    generation: GenerationRef,
    requests: Vec<RequestToExplain>,
    new_loop: NewLoop,
) -> io::Result<Vec<Result<Explanation, String>>> {
    let (sender, receiver) = mpsc::channel();
    let event_loop = tw_rt::LoopThread::<()>::start(LoopOptions::new(0), move |_| async move {
        for request in &requests {
            // Sending cannot fail: the receiver outlives this thread.
            let _ = sender.send(explain_here(generation.clone(), request, new_loop).await);
        }
    })?;
    let ended = event_loop.join();
    if let Err(ended) = ended {
        return Err(io::Error::other(format!("the loop ended early: {ended:?}")));
    }
    Ok(receiver.iter().collect())
}

async fn explain_here(
    generation: GenerationRef,
    request: &RequestToExplain,
    new_loop: NewLoop,
) -> Result<Explanation, String> {
    let mut explanation = Explanation::default();
    let request = &if request.host.is_empty() {
        match at_default_server(&generation, request) {
            Some(request) => request,
            None => return Err("no server of \"http\" listens on an address with a port".to_owned()),
        }
    } else {
        request.clone()
    };
    let port = request.port.or_else(|| port_of_host(&generation, &request.host)).unwrap_or(DEFAULT_PORT);
    let Some(at) = find_group(&generation.groups, &request.host, port) else {
        let addresses = generation.groups.iter().map(|listen| &listen.address);
        return Err(no_destination(addresses, port));
    };
    let is_secure = speaks_tls(&generation.groups[at]);
    let address = generation.groups[at].address.clone();
    let kind = generation.groups[at].kind;
    let client = Addr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000)));
    let core = LoopCore::new(0, Arc::new(Counts::default()), generation.process());
    let event_loop = new_loop(core, generation);
    let client = Client::new(1, client, Rc::new(address.clone()), kind, event_loop.clone());
    if is_secure {
        let name = String::from_utf8_lossy(&request.host).into_owned();
        // The client is new.
        let _ = client.tls.set(Box::new(TlsInfo::of_name(Some(name.into()))));
    }
    client.local_or(|| Some(local_address(&address, &request.host)));
    let mut r = event_loop.take_request();
    r.bind(&client, RequestWire::NONE);
    r.begin();
    let outcome = match read(&mut r, at, request, port) {
        Ok(()) => {
            start::set_uri(&mut r);
            explain_server(&r, at, request.scheme, &mut explanation);
            let mut deadline = Deadline::new();
            deadline.set(TIMEOUT);
            let state = deadline.guard(explain_steps(&mut r, &mut explanation)).await;
            state.map_err(|_| "the disk does not answer".to_owned()).map(|()| explanation)
        }
        Err(refused) => Err(refused),
    };
    event_loop.give_back(r);
    outcome
}
