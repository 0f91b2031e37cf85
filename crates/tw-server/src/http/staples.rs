//! Who asks authorities about the certificates of servers (`ssl_stapling`): each certificate has one loop, which asks when it is
//! due. Handshakes go on with what is known meanwhile.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tw_log::Level;
use tw_rt::TaskSet;
use tw_rt::watch::Subject;
use tw_tls::ocsp::REPLY_SIZE_MAX;

use super::gateway::inquiry::inquire;
use super::generation::{LoopGeneration, PlanId};
use crate::core::location::Resolving;
use crate::core::ssl::stapling::Staple;
use crate::event_loop::Loop;

/// How often it is looked whether an answer is about to end.
const LOOK: Duration = Duration::from_secs(1);

// DIFF(nginx): authorities are asked before a client comes.
/// Asks about the certificates of the loop's generation that are this loop's. Never ends by itself.
pub(crate) async fn keep(home: Rc<Loop>) {
    let generation = home.generation();
    let loops = generation.main.worker_count().max(1);
    let mut known: Vec<Arc<Staple>> = Vec::new();
    let mut keepers = TaskSet::default();
    for server in &generation.servers {
        for staple in server.ssl.tls.iter().flat_map(|tls| tls.staples()) {
            if known.iter().any(|other| Arc::ptr_eq(&other.slot, &staple.slot)) {
                continue;
            }
            if known.len() % loops == home.index % loops {
                let subject = Subject { kind: "stapling", id: known.len() as u64 };
                let (home, generation) = (home.clone(), generation.clone());
                keepers.spawn((), subject, follow(home, generation, staple.clone(), server.plan));
            }
            known.push(staple.clone());
        }
    }
    while let ((), Ok(())) = poll_fn(|cx| keepers.poll_ended(cx)).await {}
}

/// Asks about one certificate whenever it is due, by the name servers of the server's own block.
async fn follow(home: Rc<Loop>, generation: Rc<LoopGeneration>, staple: Arc<Staple>, plan: PlanId) {
    let core = &generation.plan(plan).core;
    loop {
        let now = tw_rt::clock::unix().secs.unsigned_abs();
        if staple.slot.due() <= now {
            let Staple { responder, name, .. } = &*staple;
            if let Err(why) = ask(&home, &staple, &core.resolving, now).await {
                // Until the next time; what is known stays.
                staple.slot.failed(now);
                let message = format_args!(
                    "{why} while requesting certificate status, responder: {responder}, certificate: \"{name}\""
                );
                core.error_log.write(Level::Error, None, message);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn ask(home: &Rc<Loop>, staple: &Staple, resolving: &Resolving, now: u64) -> Result<(), String> {
    let question = staple.question.der();
    let response = inquire(home, resolving, &staple.responder, &question, REPLY_SIZE_MAX).await?;
    let reply = tw_rt::watch::operation("judging an OCSP response", || staple.question.read(&response, now));
    staple.take(response, reply.map_err(|error| error.to_string())?, now)
}
