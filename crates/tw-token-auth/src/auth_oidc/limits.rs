//! Limits of logins and sessions.

use super::{
    discovery, endpoint, login, logout_token, pages, provider, sealed_state, session, session_table,
    used_once,
};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of the sessions of one provider, and of their pairs in the table.
    directive "session_store", "the session used longest ago ends: its user logs in again";
    use session_table::LIMITS;
    use endpoint::LIMITS;
    use provider::LIMITS;
    use discovery::LIMITS;
    use sealed_state::LIMITS;
    use used_once::LIMITS;
    use session::LIMITS;
    use pages::LIMITS;
    use logout_token::LIMITS;
    use login::LIMITS;
}
