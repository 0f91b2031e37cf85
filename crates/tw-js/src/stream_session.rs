//! Sessions of stream as scripts see them.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use tw_connect::Resolving;
use tw_core::session::Session;
use tw_core::shared_objects::SharedObjects;
use tw_disk::Disk;
use tw_request::event_loop::Loop;
use tw_script::{ByteBuf, CallKind, OperationError, Snapshot, StreamSnapshot};
use tw_stream::session::{SessionTransport, StreamSession};

use crate::call_report::Failed;
use crate::held_contexts::HeldContexts;
use crate::request_call::{Progress, ScriptFunction};
use crate::script_session::ScriptSession;
use crate::script_variable::log_missing_scripts;
use crate::script_variables::MissingVariables;
use crate::session_call::SessionCall;
use crate::set_of_plan::SetOfPlan;

impl ScriptSession for StreamSession {
    const VARIABLES: &'static [u8] = b"stream js_set";

    fn shared_objects(&self) -> &SharedObjects {
        &self.client.generation.process.shared_objects
    }

    fn missing(&self) -> Option<Rc<MissingVariables>> {
        self.held_by_module()
    }

    fn keep_missing(&mut self, missing: Rc<MissingVariables>) {
        self.hold(missing);
    }

    fn refusal(message: String) -> OperationError {
        OperationError::Type(message)
    }

    fn call_for_value<'a>(
        &'a mut self,
        function: Arc<str>,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<u8>>> + 'a>> {
        Box::pin(async move {
            let Some(scripts) = self.server().plan.parts.get::<SetOfPlan>() else {
                log_missing_scripts(self, &function);
                return None;
            };
            call(self, &scripts.function(&function)).await.ok()
        })
    }

    fn loop_index(&self) -> usize {
        self.client.event_loop.index
    }

    fn held_contexts(&mut self) -> Rc<HeldContexts> {
        self.held_by_module().unwrap_or_else(|| {
            let own = Rc::new(HeldContexts::default());
            self.hold(own.clone());
            own
        })
    }

    fn http(&self) -> Option<Rc<Loop>> {
        self.client.event_loop.http()?.downcast().ok()
    }

    fn files_disk(&self) -> &Disk {
        self.client.generation.disks.default_disk()
    }

    fn resolving(&self) -> Resolving {
        self.server().settings.resolving.clone()
    }
}

/// The session at the start of a call.
pub(crate) fn snapshot(s: &StreamSession) -> Snapshot {
    Snapshot::Stream(StreamSnapshot {
        remote_address: s.client.addr_text().as_bytes().to_vec().into(),
        status: s.status.0,
        is_datagram: matches!(s.transport, SessionTransport::Datagrams(_)),
    })
}

/// Calls a function for its value.
async fn call(s: &mut StreamSession, function: &ScriptFunction) -> Result<Vec<u8>, Failed> {
    let snapshot = snapshot(s);
    let mut call = SessionCall::start(s, function, CallKind::Set, snapshot).await?;
    loop {
        // Other effects are those of a phase, which a variable does not belong to.
        if let Progress::Done(value) = call.next(s).await? {
            return Ok(value.map(ByteBuf::into_vec).unwrap_or_default());
        }
    }
}
