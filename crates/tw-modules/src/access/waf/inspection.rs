//! One request under the rules, and what a thread keeps for the next one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tw_disk::DiskError;
use tw_rt::clock;
use tw_server::http::request::Request;
use tw_waf::{Connection, Memo, Phase, Transaction, Verdict};

use super::{CompiledRules, Waf};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Transactions of the firewall that one loop keeps for the next requests.
    const SPARES_MAX: usize = 32, count, "another one is freed";
    /// Bytes of values of such a transaction.
    const SPARE_SIZE_MAX: usize = 64 << 10, bytes, "the transaction is freed";
    /// Sets of rules whose results one thread remembers.
    const MEMOS_MAX: usize = 8, count, "the results of the set that came first are forgotten";
}

/// Request under the rules, an extension of it.
pub(super) struct Inspection {
    /// Settings of the location in which it began.
    pub(super) waf: Arc<Waf>,
    /// `None` while a thread of the pool runs rules.
    pub(super) transaction: RefCell<Option<Box<Transaction>>>,
    /// True once the rules for the body of the request have run.
    pub(super) has_checked_body: Cell<bool>,
    /// Matches that were logged.
    pub(super) logged: Cell<usize>,
}

thread_local! {
    static MEMOS: RefCell<Vec<(u64, Memo)>> = const { RefCell::new(Vec::new()) };
    static SPARES: RefCell<Vec<Box<Transaction>>> = const { RefCell::new(Vec::new()) };
}

/// Runs the rules of a phase with what this thread remembers.
fn run(transaction: &mut Transaction, phase: Phase) -> Option<Verdict> {
    let number = transaction.rules().number();
    MEMOS.with_borrow_mut(|memos| {
        if !memos.iter().any(|(known, _)| *known == number) {
            if memos.len() == MEMOS_MAX {
                memos.remove(0);
            }
            memos.push((number, Memo::default()));
        }
        let memo = memos.iter_mut().find(|(known, _)| *known == number);
        memo.and_then(|(_, memo)| transaction.run(phase, memo))
    })
}

impl Inspection {
    /// Inspection of `r`, whose rules of the head have not run yet.
    pub(super) fn begin(waf: &Arc<Waf>, rules: &CompiledRules, r: &Request) -> Self {
        let store = &waf.shared.store;
        let spare = SPARES.with_borrow_mut(Vec::pop);
        let mut transaction =
            spare.unwrap_or_else(|| Box::new(Transaction::new(rules.rules.clone(), store.clone())));
        transaction.begin(&rules.rules, store);
        fill(&mut transaction, waf, r);
        Self {
            waf: waf.clone(),
            transaction: RefCell::new(Some(transaction)),
            has_checked_body: Cell::new(false),
            logged: Cell::new(0),
        }
    }

    /// Runs the rules of a phase here.
    pub(super) fn run_here(&self, phase: Phase) -> Option<Verdict> {
        run(self.transaction.borrow_mut().as_mut()?, phase)
    }

    /// Changes the transaction in a thread of the pool, and runs the rules of a phase there.
    pub(super) async fn run_in_pool(
        &self,
        r: &mut Request,
        phase: Phase,
        change: impl FnOnce(&mut Transaction) + Send + 'static,
    ) -> Result<Option<Verdict>, DiskError> {
        let Some(mut transaction) = self.transaction.take() else { return Ok(None) };
        let work = move || {
            change(&mut transaction);
            let verdict = run(&mut transaction, phase);
            (transaction, verdict)
        };
        let pool = r.generation().disks.default_disk().pool().clone();
        let (transaction, verdict) = pool.run(&mut r.costs.account, work).await?;
        self.transaction.replace(Some(transaction));
        Ok(verdict)
    }

    /// Inspection of a request that has one.
    pub(super) fn of(r: &Request) -> Option<Rc<Self>> {
        if r.is_subrequest() { None } else { r.extensions.get() }
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        let Some(mut transaction) = self.transaction.take() else { return };
        if transaction.capacity() > SPARE_SIZE_MAX {
            return;
        }
        transaction.retire();
        // At the end of the thread there are no spares any more.
        let _ = SPARES.try_with(|spares| {
            if let Ok(mut spares) = spares.try_borrow_mut()
                && spares.len() < SPARES_MAX
            {
                spares.push(transaction);
            }
        });
    }
}

/// Gives the head of `r` to the rules.
fn fill(transaction: &mut Transaction, waf: &Waf, r: &Request) {
    let id = match &waf.transaction_id {
        Some(template) => template.value(r),
        None => format!("{:032x}", u128::from_be_bytes(r.id())).into_bytes(),
    };
    let local = r.local_addr().inet();
    let server = local.map(|addr| addr.ip().to_canonical().to_string()).unwrap_or_default();
    let unix = clock::unix();
    transaction.set_connection(&Connection {
        client: r.client_text(),
        client_port: r.client_addr().inet().map_or(0, |addr| addr.port()),
        server: &server,
        server_port: local.map_or(0, |addr| addr.port()),
        server_name: &r.generation().server(r.route.server).settings.name,
        user: b"",
        unique_id: &id,
        time: u64::try_from(unix.secs).unwrap_or(0),
        utc_offset: utc_offset(unix.secs),
    });
    transaction.set_request_line(r.head.method_bytes(), r.head.target(), protocol(r));
    let mut has_host = false;
    for (name, value) in r.head.fields() {
        has_host |= name.eq_ignore_ascii_case(b"host");
        transaction.add_request_header(name, value);
    }
    // Requests over HTTP/2 and HTTP/3 have `:authority` instead.
    if !has_host && !r.route.host.is_empty() && r.head.protocol() >= b"HTTP/2".as_slice() {
        transaction.add_request_header(b"Host", &r.route.host);
    }
    transaction.end_request_headers();
}

fn protocol(r: &Request) -> &[u8] {
    r.head.protocol()
}

/// Difference of local time to UTC.
fn utc_offset(unix: i64) -> i64 {
    let time = jiff::Timestamp::from_second(unix).unwrap_or_default();
    tw_log::time::zone().to_offset(time).seconds().into()
}
