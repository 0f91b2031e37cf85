//! Requests and sessions as scripts see them, whatever their protocol: variables and functions that compute them.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use tw_connect::Resolving;
use tw_core::session::Session;
use tw_core::shared_objects::SharedObjects;
use tw_disk::Disk;
use tw_request::event_loop::Loop;
use tw_script::OperationError;

use crate::held_contexts::HeldContexts;
use crate::script_variables::MissingVariables;

/// Request or session that scripts can be called for.
pub(crate) trait ScriptSession: Session {
    /// Name of the variables of `js_set` among the shared objects of a configuration.
    const VARIABLES: &'static [u8];

    /// Objects of the configuration.
    fn shared_objects(&self) -> &SharedObjects;

    /// Variables of `js_set` without a value, once there are such.
    fn missing(&self) -> Option<Rc<MissingVariables>>;

    /// Keeps the variables without a value.
    fn keep_missing(&mut self, missing: Rc<MissingVariables>);

    /// Exception for a variable that cannot be set.
    fn refusal(message: String) -> OperationError;

    /// Calls a function of `js_set`; `None` if it gives no value, which was logged.
    fn call_for_value<'a>(
        &'a mut self,
        function: Arc<str>,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<u8>>> + 'a>>;

    /// Number of the loop.
    fn loop_index(&self) -> usize;

    /// Gives it another ID. Returns false if it has none.
    fn set_id(&mut self, _: [u8; 16]) -> bool {
        false
    }

    /// Contexts of calls that are none of a request of http.
    fn held_contexts(&mut self) -> Rc<HeldContexts>;

    /// State of http on the loop; `None` if the loop ends.
    fn http(&self) -> Option<Rc<Loop>>;

    /// Disk of the configuration, for files of scripts.
    fn files_disk(&self) -> &Disk;

    /// Name servers for `ngx.fetch()`.
    fn resolving(&self) -> Resolving;
}
