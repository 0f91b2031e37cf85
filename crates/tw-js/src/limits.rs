//! Limits of scripts.

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    use tw_script::LIMITS;
    use tw_script_files::LIMITS;
    use crate::call_report::LIMITS;
    use crate::connection::LIMITS;
    use crate::dictionary::LIMITS;
    use crate::loop_scripts::LIMITS;
    use crate::periodic::LIMITS;
    use crate::request_call::LIMITS;
    use crate::script_call::LIMITS;
    use crate::script_set::LIMITS;
    use crate::sent_body::LIMITS;
    use crate::silence::LIMITS;
    use crate::operations::fetch::LIMITS;
    use crate::operations::fetch_url::LIMITS;
    use crate::operations::request_body::LIMITS;
    use crate::operations::subrequest::LIMITS;
}
