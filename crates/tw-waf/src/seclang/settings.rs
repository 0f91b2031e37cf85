//! Directives that are no rules: the engine, bodies, the audit log.

use super::action::RuleChoice;

/// `SecRuleEngine`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Rules decide.
    On,
    /// Rules run, but decide nothing.
    DetectionOnly,
    /// No rule runs.
    Off,
}

impl Mode {
    /// Parses a value.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "detectiononly" => Ok(Self::DetectionOnly),
            _ => Err(format!("invalid value \"{text}\"")),
        }
    }

    /// State of the engine, as logs name it.
    pub(crate) fn state(self) -> &'static str {
        match self {
            Self::On => "Enabled",
            Self::DetectionOnly => "DetectionOnly",
            Self::Off => "Disabled",
        }
    }
}

/// `SecAuditEngine`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditEngine {
    /// Every request.
    On,
    /// No request.
    Off,
    /// Requests that matched a rule, or whose status is relevant.
    RelevantOnly,
}

impl AuditEngine {
    /// Parses a value.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "relevantonly" => Ok(Self::RelevantOnly),
            _ => Err(format!("invalid value \"{text}\"")),
        }
    }
}

/// Treatment of a body beyond its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitAction {
    /// The request is refused.
    Reject,
    /// The rest is not checked.
    ProcessPartial,
}

/// `SecAuditLogType`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditLogType {
    /// One file with all records.
    Serial,
    /// A file for each record.
    Concurrent,
}

/// `SecAuditLogFormat`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditLogFormat {
    /// Parts with lines between them, ModSecurity's own.
    Native,
    /// JSON, one object on a line.
    Json,
}

/// Settings of a set of rules.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `SecRuleEngine`
    pub mode: Mode,
    /// `SecRequestBodyAccess`
    pub request_body_access: bool,
    /// `SecRequestBodyLimit`, in bytes.
    pub request_body_limit: usize,
    /// `SecRequestBodyNoFilesLimit`, in bytes.
    pub request_body_no_files_limit: usize,
    /// `SecRequestBodyLimitAction`
    pub request_body_limit_action: LimitAction,
    /// `SecRequestBodyJsonDepthLimit`
    pub json_depth_limit: usize,
    /// `SecArgumentsLimit`
    pub arguments_limit: usize,
    /// `SecUploadFileLimit`
    pub upload_file_limit: usize,
    /// `SecResponseBodyAccess`
    pub response_body_access: bool,
    /// `SecResponseBodyLimit`, in bytes.
    pub response_body_limit: usize,
    /// `SecResponseBodyLimitAction`
    pub response_body_limit_action: LimitAction,
    /// `SecResponseBodyMimeType`
    pub response_mime_types: Vec<String>,
    /// `SecAuditEngine`
    pub audit_engine: AuditEngine,
    /// `SecAuditLog`
    pub audit_log: Option<String>,
    /// `SecAuditLogFormat`
    pub audit_log_format: AuditLogFormat,
    /// `SecAuditLogType`
    pub audit_log_type: AuditLogType,
    /// `SecAuditLogStorageDir`
    pub audit_log_directory: Option<String>,
    /// `SecAuditLogParts`
    pub audit_log_parts: String,
    /// Statuses of `SecAuditLogRelevantStatus`, from 0 to 599.
    pub(crate) relevant_statuses: Vec<bool>,
    /// `SecArgumentSeparator`
    pub(crate) argument_separator: u8,
    /// `SecComponentSignature`
    pub(crate) components: Vec<String>,
    /// `SecWebAppId`
    pub(crate) web_app_id: String,
    /// `SecCollectionTimeout`, in seconds.
    pub(crate) collection_timeout: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            request_body_access: false,
            request_body_limit: 134_217_728,
            request_body_no_files_limit: 1_048_576,
            request_body_limit_action: LimitAction::Reject,
            json_depth_limit: 512,
            arguments_limit: 1000,
            upload_file_limit: 100,
            response_body_access: false,
            response_body_limit: 524_288,
            response_body_limit_action: LimitAction::Reject,
            response_mime_types: vec!["text/plain".to_owned(), "text/html".to_owned()],
            audit_engine: AuditEngine::Off,
            audit_log: None,
            audit_log_format: AuditLogFormat::Native,
            audit_log_type: AuditLogType::Serial,
            audit_log_directory: None,
            audit_log_parts: "ABCFHZ".to_owned(),
            relevant_statuses: Vec::new(),
            argument_separator: b'&',
            components: Vec::new(),
            web_app_id: String::new(),
            collection_timeout: 3600,
        }
    }
}

/// Directives of no effect here. Each has a reason why nothing is lost.
const IGNORED: &[&str] = &[
    // Regular expressions run in linear time.
    "secpcrematchlimit",
    "secpcrematchlimitrecursion",
    // Bodies are kept in memory, or where `client_body_temp_path` says.
    "sectmpdir",
    "secuploaddir",
    "secuploadfilemode",
    "secuploadkeepfiles",
    "sectmpsaveuploadedfiles",
    "secrequestbodyinmemorylimit",
    // Collections are kept in memory.
    "secdatadir",
    // The error log has levels of its own.
    "secdebuglog",
    "secdebugloglevel",
    // Full-width letters are decoded without a table.
    "secunicodecodepage",
    // There are no rules of other servers.
    "secremoterulesfailaction",
    // Of no effect in nginx, too.
    "secstatusengine",
    "secserversignature",
    "seccachetransformations",
    "secinterceptonerror",
    "secdisablebackendcompression",
    "secxmlexternalentity",
    "secauditlogdirmode",
    "secauditlogfilemode",
    "secauditlog2",
    "secauditlogprefix",
    "secconnengine",
    "secsensorid",
    "secruleperftime",
    "secgeolookupdb",
    "seccookieformat",
    "secstreaminbodyinspection",
    "secstreamoutbodyinspection",
];

impl Settings {
    /// Applies a directive. `None` if it is not known; the error is its reason.
    pub(crate) fn apply(&mut self, name: &str, arguments: &[Vec<u8>]) -> Option<Result<(), String>> {
        if IGNORED.contains(&name) {
            return Some(Ok(()));
        }
        let value =
            arguments.first().map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default();
        Some(match name {
            "secruleengine" => set(&mut self.mode, Mode::parse(&value)),
            "secrequestbodyaccess" => set(&mut self.request_body_access, flag(&value)),
            "secrequestbodylimit" => set(&mut self.request_body_limit, number(&value)),
            "secrequestbodynofileslimit" => set(&mut self.request_body_no_files_limit, number(&value)),
            "secrequestbodylimitaction" => set(&mut self.request_body_limit_action, limit_action(&value)),
            "secrequestbodyjsondepthlimit" => set(&mut self.json_depth_limit, number(&value)),
            "secargumentslimit" => set(&mut self.arguments_limit, number(&value)),
            "secuploadfilelimit" => set(&mut self.upload_file_limit, number(&value)),
            "secresponsebodyaccess" => set(&mut self.response_body_access, flag(&value)),
            "secresponsebodylimit" => set(&mut self.response_body_limit, number(&value)),
            "secresponsebodylimitaction" => set(&mut self.response_body_limit_action, limit_action(&value)),
            "secresponsebodymimetypesclear" => {
                self.response_mime_types.clear();
                Ok(())
            }
            "secresponsebodymimetype" => {
                let types = arguments.iter().flat_map(|value| value.split(u8::is_ascii_whitespace));
                let types = types.filter(|value| !value.is_empty());
                self.response_mime_types =
                    types.map(|value| String::from_utf8_lossy(value).to_ascii_lowercase()).collect();
                Ok(())
            }
            "secauditengine" => set(&mut self.audit_engine, AuditEngine::parse(&value)),
            "secauditlog" => set(&mut self.audit_log, Ok(Some(value))),
            "secauditlogstoragedir" => set(&mut self.audit_log_directory, Ok(Some(value))),
            "secauditlogparts" => set(&mut self.audit_log_parts, Ok(value)),
            "secauditlogformat" => set(
                &mut self.audit_log_format,
                match value.to_ascii_lowercase().as_str() {
                    "native" => Ok(AuditLogFormat::Native),
                    "json" => Ok(AuditLogFormat::Json),
                    _ => Err(format!("audit log format \"{value}\" is not supported")),
                },
            ),
            "secauditlogtype" => set(
                &mut self.audit_log_type,
                match value.to_ascii_lowercase().as_str() {
                    "serial" => Ok(AuditLogType::Serial),
                    "concurrent" | "parallel" => Ok(AuditLogType::Concurrent),
                    _ => Err(format!("audit log type \"{value}\" is not supported")),
                },
            ),
            "secauditlogrelevantstatus" => set(&mut self.relevant_statuses, statuses(&value)),
            "secargumentseparator" => set(
                &mut self.argument_separator,
                match value.as_bytes() {
                    [byte] => Ok(*byte),
                    _ => Err("one character is expected".to_owned()),
                },
            ),
            "seccomponentsignature" => {
                self.components.push(value);
                Ok(())
            }
            "secparsexmlintoargs" => match flag(&value) {
                Ok(true) => Err("XML is not among the arguments: use XML:/*".to_owned()),
                result => result.map(|_| ()),
            },
            "secwebappid" => set(&mut self.web_app_id, Ok(value)),
            "seccollectiontimeout" => set(&mut self.collection_timeout, number(&value)),
            _ => return None,
        })
    }

    /// Returns true if the body of a response of this media type is checked.
    pub fn checks_response_type(&self, media_type: &[u8]) -> bool {
        let end = media_type.iter().position(|byte| matches!(byte, b';' | b' ')).unwrap_or(media_type.len());
        let media_type = media_type.get(..end).unwrap_or_default();
        self.response_mime_types.iter().any(|candidate| candidate.as_bytes().eq_ignore_ascii_case(media_type))
    }
}

fn set<T>(setting: &mut T, value: Result<T, String>) -> Result<(), String> {
    *setting = value?;
    Ok(())
}

fn flag(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("invalid value \"{value}\"")),
    }
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("invalid number \"{value}\""))
}

fn limit_action(value: &str) -> Result<LimitAction, String> {
    match value.to_ascii_lowercase().as_str() {
        "reject" => Ok(LimitAction::Reject),
        "processpartial" => Ok(LimitAction::ProcessPartial),
        _ => Err(format!("invalid value \"{value}\"")),
    }
}

/// Statuses that match a regular expression, which is only run here: it may have look-around.
fn statuses(pattern: &str) -> Result<Vec<bool>, String> {
    let regex = fancy_regex::Regex::new(pattern).map_err(|error| error.to_string())?;
    Ok((0..600).map(|status: u32| regex.is_match(&format!("{status:03}")).unwrap_or(false)).collect())
}

/// Parses the first argument of `SecRuleRemoveById` and similar directives.
pub(crate) fn choice(name: &str, arguments: &[Vec<u8>]) -> Result<RuleChoice, String> {
    let text = |argument: &Vec<u8>| String::from_utf8_lossy(argument).into_owned();
    if name.ends_with("id") {
        let ids = arguments.iter().map(text).collect::<Vec<_>>().join(" ");
        return Ok(RuleChoice::Ids(super::action::id_ranges(&ids)?));
    }
    let value = arguments.first().map(text).unwrap_or_default().into();
    Ok(if name.ends_with("tag") { RuleChoice::Tag(value) } else { RuleChoice::Message(value) })
}
