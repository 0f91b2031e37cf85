//! Rules for the response.

use std::io;
use std::rc::Rc;
use std::task::Context;

use bytes::Bytes;
use tw_http::{HeaderName, Method};
use tw_log::Level;
use tw_request::body::{Body, Pull};
use tw_request::plan::{LocalFuture, WholeBodyFilter};
use tw_request::request::Request;
use tw_waf::{Phase, Transaction, Verdict};

use super::firewall::INLINE_BODY_MAX;
use super::inspection::{Inspection, NotChecked};
use super::{report, request};

/// Bytes that are pulled of a body at once.
const PULL_SIZE: usize = 64 << 10;

/// Checks the response before anything of it is sent.
pub(super) struct ResponseCheck;

impl WholeBodyFilter for ResponseCheck {
    fn filter<'a>(&'a self, r: &'a mut Request, body: Body) -> LocalFuture<'a, Result<Body, u16>> {
        Box::pin(async move {
            let Some(inspection) = Inspection::of(r) else { return Ok(body) };
            let is_decided = match inspection.transaction.borrow().as_ref() {
                Some(transaction) => transaction.verdict().is_some(),
                None => true,
            };
            if is_decided || matches!(body, Body::Upgraded(_)) {
                return Ok(body);
            }
            check(r, &inspection, body).await
        })
    }
}

/// Part of a body that rules read.
struct Gathered {
    bytes: Bytes,
    /// The rest of a body that is longer.
    rest: Option<Body>,
}

async fn check(r: &mut Request, inspection: &Rc<Inspection>, body: Body) -> Result<Body, u16> {
    let media_type = r.response.content_type.clone();
    let (limit, refuses_long, reads_body) = {
        let mut transaction = inspection.transaction.borrow_mut();
        let Some(transaction) = transaction.as_mut() else { return Ok(body) };
        set_head(transaction, r);
        let limit = transaction.response_body_limit();
        (limit, transaction.refuses_long_responses(), transaction.reads_response_body(&media_type))
    };
    run(r, inspection, Phase::ResponseHeaders).await?;
    if !reads_body || r.method() == Method::Head {
        run(r, inspection, Phase::ResponseBody).await?;
        return Ok(body);
    }
    let Gathered { bytes, rest } = gather(r, body, limit).await?;
    let is_cut = rest.is_some();
    if is_cut && refuses_long {
        r.log(
            Level::Error,
            format_args!("ModSecurity: response body is larger than \"SecResponseBodyLimit\""),
        );
        r.response.reset(500);
        return Err(500);
    }
    if bytes.len() <= INLINE_BODY_MAX {
        if let Some(transaction) = inspection.transaction.borrow_mut().as_mut() {
            transaction.set_response_body(&bytes, is_cut);
        }
        run(r, inspection, Phase::ResponseBody).await?;
    } else {
        let checked = bytes.clone();
        let set = move |transaction: &mut Transaction| transaction.set_response_body(&checked, is_cut);
        let verdict = inspection.run_in_pool(r, Phase::ResponseBody, set).await;
        after_rules(r, inspection, verdict)?;
    }
    Ok(match rest {
        None => Body::Bytes(bytes),
        Some(rest) => Body::Pull(Box::new(Continued { first: Some(bytes), rest })),
    })
}

/// Runs the rules of a phase. The error is the status to answer with.
async fn run(r: &mut Request, inspection: &Inspection, phase: Phase) -> Result<(), u16> {
    let verdict = inspection.run(r, phase).await;
    after_rules(r, inspection, verdict)
}

/// Continues after rules. A response that could not be checked is replaced. The error is the status to answer with.
fn after_rules(
    r: &mut Request,
    inspection: &Inspection,
    verdict: Result<Option<Verdict>, NotChecked>,
) -> Result<(), u16> {
    match verdict {
        Ok(verdict) => refuse(r, inspection, verdict),
        Err(error) => {
            r.log(Level::Error, format_args!("response was not checked by the firewall: {error}"));
            r.response.reset(503);
            Err(503)
        }
    }
}

fn set_head(transaction: &mut Transaction, r: &Request) {
    let protocol = String::from_utf8_lossy(r.head.protocol());
    transaction.set_response_status(r.response.status, &protocol);
    if !r.response.content_type.is_empty() {
        transaction.add_response_header(b"Content-Type", &r.response.content_type);
    }
    if !r.response.location.is_empty() {
        transaction.add_response_header(b"Location", &r.response.location);
    }
    for (name, value) in r.response.fields.iter() {
        if !name.eq_ignore_ascii_case(b"content-type") {
            transaction.add_response_header(name, value);
        }
    }
}

/// Ends the response if rules have decided so. The error is the status to answer with.
fn refuse(r: &mut Request, inspection: &Inspection, verdict: Option<Verdict>) -> Result<(), u16> {
    report::log_matches(r, inspection);
    let Some(verdict) = verdict else { return Ok(()) };
    r.response.reset(200);
    let status = request::status_of(r, verdict.action);
    r.response.status = status;
    Err(status)
}

/// Reads from the beginning of a body what rules read of it.
async fn gather(r: &mut Request, mut body: Body, limit: usize) -> Result<Gathered, u16> {
    if let Some(bytes) = body.in_memory().filter(|bytes| bytes.len() <= limit) {
        return Ok(Gathered { bytes, rest: None });
    }
    let mut gathered = Vec::new();
    while gathered.len() <= limit {
        match body.next(PULL_SIZE, r).await {
            Ok(Some(piece)) if piece.is_empty() => tw_rt::yield_now().await,
            Ok(Some(piece)) => gathered.extend_from_slice(&piece),
            Ok(None) => return Ok(Gathered { bytes: gathered.into(), rest: None }),
            Err(error) => {
                r.log(Level::Error, format_args!("{error} while reading the response for the firewall"));
                r.response.reset(502);
                return Err(502);
            }
        }
    }
    r.response.fields.remove_known(HeaderName::AcceptRanges);
    Ok(Gathered { bytes: gathered.into(), rest: Some(body) })
}

/// Body whose first bytes were read before.
struct Continued {
    first: Option<Bytes>,
    rest: Body,
}

impl Pull for Continued {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            match &mut self.first {
                Some(first) if first.len() > want => Ok(Some(first.split_to(want))),
                Some(_) => Ok(self.first.take()),
                None => self.rest.next(want, r).await,
            }
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.rest.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.rest.flushes()
    }
}
