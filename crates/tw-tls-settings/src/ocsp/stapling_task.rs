//! Background task of OCSP stapling (`ssl_stapling`): each certificate belongs to one loop, which fetches its response when that is
//! due. Handshakes use what is known meanwhile.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tw_core::event_loop::LoopShare;
use tw_log::Level;
use tw_rt::TaskSet;
use tw_rt::watch::Subject;
use tw_tls::ocsp::REPLY_SIZE_MAX;

use super::ocsp_client::OcspClient;
use super::stapling::{Staple, Stapling};

/// Interval of the look for responses that expire soon, and for replaced certificates.
const LOOK: Duration = Duration::from_secs(1);

/// Server whose certificate is stapled: its OCSP client and its error log.
pub trait StaplingHost: OcspClient + 'static {
    /// Writes a line into the error log.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);
}

// DIFF(nginx): responses are fetched before a client connects.
/// Keeps responses up to date for those of `certificates`, the ones of all servers, that are in the `share` of a loop. Never ends
/// by itself.
pub async fn keep_stapled<H: StaplingHost>(
    certificates: impl Iterator<Item = (Arc<Stapling>, H)>,
    share: LoopShare,
) {
    let mut staplings: Vec<Arc<Stapling>> = Vec::new();
    let mut tasks = TaskSet::default();
    for (stapling, host) in certificates {
        if staplings.iter().any(|other| other.is_same(&stapling)) {
            continue;
        }
        if share.has(staplings.len()) {
            let subject = Subject { kind: "stapling", id: staplings.len() as u64 };
            tasks.spawn((), subject, follow(host, stapling.clone()));
        }
        staplings.push(stapling);
    }
    while let ((), Ok(())) = poll_fn(|cx| tasks.poll_ended(cx)).await {}
}

/// Fetches responses about one certificate whenever that is due.
async fn follow<H: StaplingHost>(host: H, stapling: Arc<Stapling>) {
    loop {
        let now = tw_rt::clock::unix().secs.unsigned_abs();
        let name = &stapling.name;
        match tw_rt::watch::operation("reading a certificate", || stapling.refresh()) {
            Ok(Some(staple)) => {
                if let Some(permit) = staple.slot.try_fetch(now) {
                    let fetched = fetch(&host, &staple, now).await;
                    permit.finish();
                    let responder = &staple.responder;
                    if let Err(why) = fetched {
                        let message = format_args!(
                            "{why} while requesting certificate status, responder: {responder}, certificate: \"{name}\""
                        );
                        host.log(Level::Error, message);
                    }
                }
            }
            Ok(None) => {}
            Err(why) => {
                let message = format_args!("\"ssl_stapling\" ignored, {why} certificate \"{name}\"");
                host.log(Level::Warn, message);
            }
        }
        tw_rt::time::sleep(LOOK).await;
    }
}

async fn fetch(client: &impl OcspClient, staple: &Staple, now: u64) -> Result<(), String> {
    let response = client.query(&staple.responder, &staple.question.der(), REPLY_SIZE_MAX).await?;
    let reply = tw_rt::watch::operation("judging an OCSP response", || staple.question.read(&response, now));
    staple.store(response, reply.map_err(|error| error.to_string())?, now)
}
