//! Requests of http as scripts see them.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use tw_connect::Resolving;
use tw_core::shared_objects::SharedObjects;
use tw_disk::Disk;
use tw_request::event_loop::Loop;
use tw_request::request::Request;
use tw_script::{ByteBuf, CallKind, OperationError};

use crate::held_contexts::HeldContexts;
use crate::request_call::{Failed, Progress, RequestCall, ScriptFunction};
use crate::script_session::ScriptSession;
use crate::script_variable::log_missing_scripts;
use crate::script_variables::MissingVariables;
use crate::set_of_plan::SetOfPlan;
use crate::snapshot;

impl ScriptSession for Request {
    const VARIABLES: &'static [u8] = b"js_set";

    fn shared_objects(&self) -> &SharedObjects {
        &self.generation().process.shared_objects
    }

    // Subrequests share the values of variables, and these.
    fn missing(&self) -> Option<Rc<MissingVariables>> {
        self.extensions.get()
    }

    fn keep_missing(&mut self, missing: Rc<MissingVariables>) {
        self.extensions.put_common(missing);
    }

    fn refusal(message: String) -> OperationError {
        OperationError::Type(message)
    }

    fn call_for_value<'a>(
        &'a mut self,
        function: Arc<str>,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<u8>>> + 'a>> {
        Box::pin(async move {
            let Some(scripts) = self.plan().parts.get::<SetOfPlan>() else {
                log_missing_scripts(self, &function);
                return None;
            };
            call(self, &scripts.function(&function)).await.ok()
        })
    }

    fn loop_index(&self) -> usize {
        self.client().event_loop.index
    }

    fn held_contexts(&mut self) -> Rc<HeldContexts> {
        self.extensions.get().unwrap_or_else(|| {
            let own = Rc::new(HeldContexts::default());
            self.extensions.put(own.clone());
            own
        })
    }

    fn set_id(&mut self, id: [u8; 16]) -> bool {
        self.context.id.set(Some(id));
        true
    }

    fn http(&self) -> Option<Rc<Loop>> {
        Some(self.client().event_loop.clone())
    }

    fn files_disk(&self) -> &Disk {
        self.generation().disks.default_disk()
    }

    fn resolving(&self) -> Resolving {
        self.plan().core.resolving.clone()
    }
}

/// Calls a function for its value.
async fn call(r: &mut Request, function: &ScriptFunction) -> Result<Vec<u8>, Failed> {
    let snapshot = snapshot::of_request(r, None);
    let mut call = RequestCall::start(r, function, CallKind::Set, snapshot).await?;
    loop {
        // Other effects are those of a response, which a variable does not make.
        if let Progress::Done(value) = call.next(r).await? {
            return Ok(value.map(ByteBuf::into_vec).unwrap_or_default());
        }
    }
}
