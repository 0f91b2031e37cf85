//! One loop: its scripts, its contexts and its calls. No I/O: messages come in as arguments and leave by the link.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use tw_script::{
    Call, CallId, ContextId, Event, HostMessage, Load, OperationError, Outcome, ProcessMessage, Reply,
    ScriptId, Token,
};

use crate::link::Link;
use crate::realm::{EventResult, Realm};
use crate::watch::Watch;

tw_base::limits! {
    /// Limits of the calls of one loop.
    pub(crate) const LIMITS;

    /// Contexts of one loop that serve requests and sessions at the same time. Each takes a third of a megabyte without what its scripts keep.
    const CONTEXTS_MAX: usize = 1024, count, "further calls wait";
    /// Calls that wait for a context.
    const WAITING_MAX: usize = 4096, count, "the call is refused";
    /// Contexts that are kept for later requests.
    directive "js_context_reuse", "the context is freed";
}

/// Owner of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    /// A request, and the script that it uses.
    Request(ContextId, ScriptId),
    /// A single call.
    Call(CallId),
}

/// A loaded script.
struct Script {
    load: Rc<Load>,
    /// Contexts that no request uses.
    idle: Vec<Realm>,
}

/// State of one loop.
pub(crate) struct Session {
    link: Rc<dyn Link>,
    watch: Rc<Watch>,
    scripts: HashMap<ScriptId, Script>,
    realms: HashMap<Owner, Realm>,
    calls: HashMap<CallId, (Owner, ScriptId)>,
    waiting: VecDeque<WaitingCall>,
}

/// A call that waits for a context, with the events that have arrived for it.
struct WaitingCall {
    call: Call,
    events: Vec<Event>,
}

impl Session {
    pub(crate) fn new(link: Rc<dyn Link>, watch: Rc<Watch>) -> Self {
        Self {
            link,
            watch,
            scripts: HashMap::new(),
            realms: HashMap::new(),
            calls: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Serves one message.
    pub(crate) fn handle(&mut self, message: HostMessage) {
        self.serve(message);
        self.start_waiting();
    }

    fn serve(&mut self, message: HostMessage) {
        match message {
            HostMessage::Load(load) => self.load(*load),
            HostMessage::Unload { script } => {
                self.scripts.remove(&script);
            }
            HostMessage::Call(call) => self.start(*call),
            HostMessage::Reply { call, token, result } => self.deliver(call, token, result),
            HostMessage::Event(event) => self.handle_event(event),
            HostMessage::Cancel { call } => {
                self.waiting.retain(|waiting| waiting.call.call != call);
                self.with_realm(call, |realm| realm.cancel(call));
                self.end(call);
            }
            HostMessage::Release { context } => self.release(context),
        }
    }

    fn handle_event(&mut self, event: Event) {
        let call = event.call;
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.call.call == call) {
            waiting.events.push(event);
            return;
        }
        match self.with_realm(call, |realm| realm.handle_event(&event)) {
            // The end of the call of a session is no answer to a piece: it may have crossed the piece.
            Some(EventResult::HandledOfSession) => {
                self.send(&ProcessMessage::Handled { call });
                self.collect(call);
            }
            // An exception is the answer in place of the end of the piece: the host sends the last piece only once this is known.
            Some(EventResult::Handled | EventResult::Failed) => {
                self.collect(call);
                if self.calls.contains_key(&call) {
                    self.send(&ProcessMessage::Handled { call });
                }
            }
            Some(EventResult::NotRunning) | None => {}
        }
    }

    fn load(&mut self, load: Load) {
        let script = load.script;
        let load = Rc::new(load);
        let result = match Realm::new(&load, &self.link, &self.watch) {
            Ok(realm) => {
                self.scripts.insert(script, Script { load, idle: vec![realm] });
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.send(&ProcessMessage::Loaded { script, result });
    }

    fn start(&mut self, call: Call) {
        let owner = match call.context {
            0 => Owner::Call(call.call),
            context => Owner::Request(context, call.script),
        };
        if !self.realms.contains_key(&owner) {
            if self.realms.len() >= CONTEXTS_MAX {
                return self.wait(call);
            }
            match self.take_realm(call.script) {
                Ok(realm) => {
                    self.realms.insert(owner, realm);
                }
                Err(reason) => return self.refuse(call.call, reason),
            }
        }
        let id = call.call;
        self.calls.insert(id, (owner, call.script));
        if let Some(realm) = self.realms.get_mut(&owner) {
            realm.start(call);
        }
        self.collect(id);
    }

    fn wait(&mut self, call: Call) {
        if self.waiting.len() == WAITING_MAX {
            return self.refuse(call.call, "too many calls wait for a context".to_owned());
        }
        self.waiting.push_back(WaitingCall { call, events: Vec::new() });
    }

    fn refuse(&self, call: CallId, reason: String) {
        self.send(&ProcessMessage::Done { call, outcome: Outcome::NotStarted(reason) });
    }

    /// A context for a request: one that has served others, or a new one.
    fn take_realm(&mut self, script: ScriptId) -> Result<Realm, String> {
        let Some(script) = self.scripts.get_mut(&script) else {
            return Err("the script is not loaded".to_owned());
        };
        if let Some(realm) = script.idle.pop() {
            return Ok(realm);
        }
        Realm::new(&script.load, &self.link, &self.watch).map_err(|error| format!("{error:?}"))
    }

    fn deliver(&mut self, call: CallId, token: Token, result: Result<Reply, OperationError>) {
        self.with_realm(call, |realm| realm.deliver(token, result));
        self.collect(call);
    }

    fn with_realm<T>(&mut self, call: CallId, serve: impl FnOnce(&mut Realm) -> T) -> Option<T> {
        let (owner, _) = self.calls.get(&call)?;
        self.realms.get_mut(owner).map(serve)
    }

    /// Reports calls that have ended in the context of `call`.
    fn collect(&mut self, call: CallId) {
        let Some((owner, _)) = self.calls.get(&call).copied() else { return };
        self.collect_of(owner);
    }

    /// Reports calls of a context that have ended, and the end of a callback that has sent a part of a response.
    fn collect_of(&mut self, owner: Owner) {
        let Some(realm) = self.realms.get_mut(&owner) else { return };
        let (finished, sending) = (realm.take_finished(), realm.take_sending());
        if let Some(call) = sending {
            self.send(&ProcessMessage::Handled { call });
        }
        for (call, outcome) in finished {
            self.send(&ProcessMessage::Done { call, outcome });
            self.end(call);
        }
    }

    /// Forgets a call, and frees its context if that belonged to it alone.
    fn end(&mut self, call: CallId) {
        if let Some((owner @ Owner::Call(_), script)) = self.calls.remove(&call) {
            self.free(owner, script);
        }
    }

    fn release(&mut self, context: ContextId) {
        let is_released = |owner: &&Owner| matches!(owner, Owner::Request(id, _) if *id == context);
        let owners: Vec<Owner> = self.realms.keys().filter(is_released).copied().collect();
        for owner in owners {
            let running = self.realms.get(&owner).map(|realm| realm.running().collect::<Vec<_>>());
            for call in running.unwrap_or_default() {
                self.calls.remove(&call);
            }
            if let Owner::Request(_, script) = owner {
                self.free(owner, script);
            }
        }
    }

    /// Frees a context for the next request that waits for one.
    fn free(&mut self, owner: Owner, script: ScriptId) {
        let Some(mut realm) = self.realms.remove(&owner) else { return };
        if let Some(script) = self.scripts.get_mut(&script)
            && script.idle.len() < script.load.settings.context_reuse_count as usize
            && realm.reset()
        {
            script.idle.push(realm);
        }
    }

    /// Starts calls that have waited for a context.
    fn start_waiting(&mut self) {
        while self.realms.len() < CONTEXTS_MAX
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.start(waiting.call);
            for event in waiting.events {
                self.handle_event(event);
            }
        }
    }

    /// Runs callbacks of timers that are due.
    pub(crate) fn fire_timers(&mut self, now: Instant) {
        let is_due = |realm: &Realm| realm.next_timer().is_some_and(|time| time <= now);
        let due: Vec<Owner> =
            self.realms.iter().filter(|(_, realm)| is_due(realm)).map(|(owner, _)| *owner).collect();
        for owner in due {
            let Some(realm) = self.realms.get_mut(&owner) else { continue };
            realm.fire_timers(now);
            self.collect_of(owner);
        }
        self.start_waiting();
    }

    /// Time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.realms.values().filter_map(Realm::next_timer).min()
    }

    /// Sends a message; one that is too large is replaced by an exception.
    fn send(&self, message: &ProcessMessage) {
        if let Err(error) = self.link.send(message)
            && let ProcessMessage::Done { call, .. } = message
        {
            let message = format!("Error: {error}");
            let exception = tw_script::Exception { message, ..Default::default() };
            let done = ProcessMessage::Done { call: *call, outcome: Outcome::Exception(exception) };
            // A short message cannot be too large.
            let _ = self.link.send(&done);
        }
    }
}
