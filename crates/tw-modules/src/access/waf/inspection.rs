//! One request under the rules, and what a thread keeps for the next one.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_disk::DiskError;
use tw_request::request::Request;
use tw_rt::clock;
use tw_waf::{Connection, Memo, Phase, PhaseProgress, Transaction, Verdict};

use super::firewall::{CompiledRules, INLINE_MAX, Waf};
use tw_module_support::turn_queue::{self, ClientKey, TurnWait, wait_for_turn};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Transactions of the firewall that one loop keeps for the next requests.
    const SPARES_MAX: usize = 32, count, "another one is freed";
    /// Bytes of values of such a transaction.
    const SPARE_SIZE_MAX: usize = 64 << 10, bytes, "the transaction is freed";
    /// Sets of rules whose results one thread remembers.
    const MEMOS_MAX: usize = 8, count, "the results of the set that came first are forgotten";
    /// Time of one turn of a loop for rules of the firewall, but for the step that has begun.
    const TURN_TIME_MAX: Duration = Duration::from_micros(400), time, "further requests are checked in the next turn";
    /// Time of one phase of a request on a loop, but for the step that has begun.
    const REQUEST_TIME_MAX: Duration = Duration::from_micros(200), time, "the phase continues on a thread of the pool";
}

/// State of a phase after a part of it on a loop.
pub(super) enum Progress {
    /// All rules have run.
    Done(Option<Verdict>),
    /// The rest has to wait.
    Waits,
}

/// Reason why a request was not checked.
pub(super) enum NotChecked {
    /// The disk's pool did not run the rules.
    Pool(DiskError),
    /// Too many requests wait for a thread.
    QueueFull,
    /// No thread was free for too long.
    TooLong,
    /// The client has gone.
    Gone,
}

impl fmt::Display for NotChecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(error) => error.fmt(f),
            Self::QueueFull => f.write_str("too many requests wait for a thread"),
            Self::TooLong => f.write_str("no thread was free"),
            Self::Gone => f.write_str("the client has closed its connection"),
        }
    }
}

impl NotChecked {
    /// Returns true if a later attempt may succeed.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Pool(error) => error.is_passing(),
            Self::QueueFull | Self::TooLong | Self::Gone => true,
        }
    }
}

/// Time that a turn of a loop has spent on rules.
#[derive(Clone, Copy)]
struct TurnTime {
    turn: Instant,
    spent: Duration,
}

/// Request under the rules, an extension of it.
pub(super) struct Inspection {
    /// Settings of the location in which it began.
    pub(super) waf: Arc<Waf>,
    /// `None` while a thread of the pool runs rules.
    pub(super) transaction: RefCell<Option<Transaction>>,
    /// True once the rules for the body of the request have run.
    pub(super) has_checked_body: Cell<bool>,
    /// Matches that were logged.
    pub(super) logged: Cell<usize>,
    /// Time of the phase on a loop so far.
    spent: Cell<Duration>,
}

thread_local! {
    static MEMOS: RefCell<Vec<(u64, Memo)>> = const { RefCell::new(Vec::new()) };
    static SPARES: RefCell<Vec<Transaction>> = const { RefCell::new(Vec::new()) };
    static TURN_TIME: Cell<Option<TurnTime>> = const { Cell::new(None) };
}

/// Time that this turn of the loop has spent on rules.
fn spent_in_turn() -> Duration {
    let turn = clock::now();
    TURN_TIME.get().filter(|time| time.turn == turn).map_or(Duration::ZERO, |time| time.spent)
}

/// Calls `work` with what this thread remembers of a transaction's rules.
fn with_memo<T>(
    transaction: &mut Transaction,
    work: impl FnOnce(&mut Transaction, &mut Memo) -> T,
) -> Option<T> {
    let number = transaction.rules().number();
    MEMOS.with_borrow_mut(|memos| {
        if !memos.iter().any(|(candidate, _)| *candidate == number) {
            if memos.len() == MEMOS_MAX {
                memos.remove(0);
            }
            memos.push((number, Memo::default()));
        }
        let memo = memos.iter_mut().find(|(candidate, _)| *candidate == number);
        memo.map(|(_, memo)| work(transaction, memo))
    })
}

/// Runs all rules of a phase, however long that takes.
fn run_all(transaction: &mut Transaction, phase: Phase) -> Option<Verdict> {
    with_memo(transaction, |transaction, memo| transaction.run(phase, memo)).flatten()
}

impl Inspection {
    /// Inspection of `r`, whose rules of the head have not run yet.
    pub(super) fn begin(waf: &Arc<Waf>, rules: &CompiledRules, r: &Request) -> Self {
        let store = &waf.shared.store;
        let spare = SPARES.with_borrow_mut(Vec::pop);
        let mut transaction = spare.unwrap_or_else(|| Transaction::new(rules.rules.clone(), store.clone()));
        transaction.begin(&rules.rules, store);
        fill(&mut transaction, waf, r);
        Self {
            waf: waf.clone(),
            transaction: RefCell::new(Some(transaction)),
            has_checked_body: Cell::new(false),
            logged: Cell::new(0),
            spent: Cell::new(Duration::ZERO),
        }
    }

    /// Runs all rules of a phase here, however long that takes.
    pub(super) fn run_to_end(&self, phase: Phase) -> Option<Verdict> {
        run_all(self.transaction.borrow_mut().as_mut()?, phase)
    }

    /// Runs the rules of a phase here, as long as this turn of the loop has time for them. [`finish`](Self::finish) runs the rest.
    pub(super) fn run_here(&self, phase: Phase) -> Progress {
        self.spent.set(Duration::ZERO);
        match self.run_part(phase) {
            Part::Done(verdict) => Progress::Done(verdict),
            Part::TurnIsOver | Part::TooLong => Progress::Waits,
        }
    }

    fn run_part(&self, phase: Phase) -> Part {
        let mut transaction = self.transaction.borrow_mut();
        let Some(transaction) = transaction.as_mut() else { return Part::Done(None) };
        if transaction.value_bytes() > INLINE_MAX || self.spent.get() >= REQUEST_TIME_MAX {
            return Part::TooLong;
        }
        let before = spent_in_turn();
        if before >= TURN_TIME_MAX {
            return Part::TurnIsOver;
        }
        let limit = (TURN_TIME_MAX - before).min(REQUEST_TIME_MAX.saturating_sub(self.spent.get()));
        let begin = clock::precise();
        let mut is_over = || begin.elapsed() >= limit;
        let run = |transaction: &mut Transaction, memo: &mut Memo| {
            transaction.run_within(phase, memo, &mut is_over)
        };
        let progress = with_memo(transaction, run);
        let spent = begin.elapsed();
        TURN_TIME.set(Some(TurnTime { turn: clock::now(), spent: before + spent }));
        self.spent.set(self.spent.get() + spent);
        match progress {
            None => Part::Done(None),
            Some(PhaseProgress::Done(verdict)) => Part::Done(verdict),
            // A step that is too long for a loop interrupts the phase before its time is over.
            Some(PhaseProgress::Interrupted) if spent < limit || self.spent.get() >= REQUEST_TIME_MAX => {
                Part::TooLong
            }
            Some(PhaseProgress::Interrupted) => Part::TurnIsOver,
        }
    }

    /// Runs the rest of a phase: in later turns of the loop, or in a thread of the pool if it takes long.
    pub(super) async fn finish(&self, r: &mut Request, phase: Phase) -> Result<Option<Verdict>, NotChecked> {
        loop {
            match self.run_part(phase) {
                Part::Done(verdict) => return Ok(verdict),
                Part::TurnIsOver => tw_rt::yield_now().await,
                Part::TooLong => return self.run_in_pool(r, phase, |_| {}).await,
            }
        }
    }

    /// Runs the rules of a phase, here or in a thread of the pool.
    pub(super) async fn run(&self, r: &mut Request, phase: Phase) -> Result<Option<Verdict>, NotChecked> {
        match self.run_here(phase) {
            Progress::Done(verdict) => Ok(verdict),
            Progress::Waits => self.finish(r, phase).await,
        }
    }

    /// Changes the transaction in a thread of the pool, and runs the rules of a phase there.
    pub(super) async fn run_in_pool(
        &self,
        r: &mut Request,
        phase: Phase,
        change: impl FnOnce(&mut Transaction) + Send + 'static,
    ) -> Result<Option<Verdict>, NotChecked> {
        let client = ClientKey::of(r.client_addr());
        let mut ticket = self.waf.shared.turns.enter(client).map_err(|_| NotChecked::QueueFull)?;
        wait_for_turn(r, &mut ticket, turn_queue::WAIT_MAX).await.map_err(|wait| match wait {
            TurnWait::TooLong => NotChecked::TooLong,
            TurnWait::Gone(_) => NotChecked::Gone,
        })?;
        let Some(mut transaction) = self.transaction.take() else { return Ok(None) };
        let work = move || {
            change(&mut transaction);
            let verdict = run_all(&mut transaction, phase);
            (transaction, verdict)
        };
        let pool = r.generation().disks.default_disk().pool().clone();
        let run = pool.run(&mut r.costs.account, work).await;
        drop(ticket);
        let (transaction, verdict) = run.map_err(NotChecked::Pool)?;
        self.transaction.replace(Some(transaction));
        Ok(verdict)
    }

    /// Inspection of a request that has one.
    pub(super) fn of(r: &Request) -> Option<Rc<Self>> {
        if r.is_subrequest() { None } else { r.extensions.get() }
    }
}

/// Result of a part of a phase.
enum Part {
    Done(Option<Verdict>),
    /// The turn of the loop has no more time for rules.
    TurnIsOver,
    /// The phase, or its next step, takes too long for a loop.
    TooLong,
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
