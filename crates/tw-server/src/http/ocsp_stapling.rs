//! OCSP stapling (`ssl_stapling`): one loop for each certificate asks its authority when a response is due. Handshakes use the
//! last response meanwhile.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tw_log::Level;
use tw_rt::TaskSet;
use tw_rt::watch::Subject;
use tw_tls::ocsp::REPLY_SIZE_MAX;

use super::generation::{LoopGeneration, PlanId};
use super::proxy::ocsp_client::query;
use crate::config::location::Resolving;
use crate::config::ssl::stapling::{Staple, Stapling};
use crate::event_loop::Loop;

/// Interval of checks for responses about to expire and changed certificates.
const LOOK: Duration = Duration::from_secs(1);

// DIFF(nginx): authorities are asked before a client comes.
/// Asks about the certificates of the loop's generation that are this loop's. Never ends by itself.
pub(crate) async fn run(home: Rc<Loop>) {
    let generation = home.generation();
    let loops = generation.main.worker_count().max(1);
    let mut known: Vec<Arc<Stapling>> = Vec::new();
    let mut keepers = TaskSet::default();
    for server in &generation.servers {
        for stapling in server.ssl.tls.iter().flat_map(|tls| tls.staplings()) {
            if known.iter().any(|other| other.is_same(stapling)) {
                continue;
            }
            if known.len() % loops == home.index % loops {
                let subject = Subject { kind: "stapling", id: known.len() as u64 };
                let (home, generation) = (home.clone(), generation.clone());
                keepers.spawn((), subject, follow(home, generation, stapling.clone(), server.plan));
            }
            known.push(stapling.clone());
        }
    }
    while let ((), Ok(())) = poll_fn(|cx| keepers.poll_ended(cx)).await {}
}

/// Asks about the certificate of one place whenever it is due, by the name servers of the server's own block.
async fn follow(home: Rc<Loop>, generation: Rc<LoopGeneration>, stapling: Arc<Stapling>, plan: PlanId) {
    let core = &generation.plan(plan).core;
    loop {
        let now = tw_rt::clock::unix().secs.unsigned_abs();
        let name = &stapling.name;
        match tw_rt::watch::operation("reading a certificate", || stapling.follow()) {
            Ok(Some(staple)) => {
                if let Some(claim) = staple.slot.claim(now) {
                    let asked = update(&home, &staple, &core.resolving, now).await;
                    claim.settle();
                    let responder = &staple.responder;
                    if let Err(why) = asked {
                        let message = format_args!(
                            "{why} while requesting certificate status, responder: {responder}, certificate: \"{name}\""
                        );
                        core.error_log.write(Level::Error, None, message);
                    }
                }
            }
            Ok(None) => {}
            Err(why) => {
                let message = format_args!("\"ssl_stapling\" ignored, {why} certificate \"{name}\"");
                core.error_log.write(Level::Warn, None, message);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn update(home: &Rc<Loop>, staple: &Staple, resolving: &Resolving, now: u64) -> Result<(), String> {
    let question = staple.question.der();
    let response = query(home, resolving, &staple.responder, &question, REPLY_SIZE_MAX).await?;
    let reply = tw_rt::watch::operation("judging an OCSP response", || staple.question.read(&response, now));
    staple.take(response, reply.map_err(|error| error.to_string())?, now)
}
