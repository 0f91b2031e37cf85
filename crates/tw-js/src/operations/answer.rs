//! Answer to an operation.

use tw_script::{OperationError, Reply};

/// Answer to an operation: a result, or the exception that the script gets.
pub(crate) type Answer = Result<Reply, OperationError>;
