//! Variables of rules.

/// Source of the values of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One value.
    Single,
    /// Named values.
    Collection,
}

macro_rules! variables {
    ($($variant:ident $name:literal $shape:ident,)*) => {
        /// Variable of a rule.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub(crate) enum Variable {
            $(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )*
        }

        /// All variables.
        const ALL: &[(Variable, &str, Shape)] = &[$((Variable::$variant, $name, Shape::$shape),)*];
    };
}

variables! {
    Args "ARGS" Collection,
    ArgsGet "ARGS_GET" Collection,
    ArgsPost "ARGS_POST" Collection,
    ArgsNames "ARGS_NAMES" Collection,
    ArgsGetNames "ARGS_GET_NAMES" Collection,
    ArgsPostNames "ARGS_POST_NAMES" Collection,
    ArgsCombinedSize "ARGS_COMBINED_SIZE" Single,
    AuthType "AUTH_TYPE" Single,
    Duration "DURATION" Single,
    Env "ENV" Collection,
    Files "FILES" Collection,
    FilesNames "FILES_NAMES" Collection,
    FilesSizes "FILES_SIZES" Collection,
    FilesTmpContent "FILES_TMP_CONTENT" Collection,
    FilesCombinedSize "FILES_COMBINED_SIZE" Single,
    FullRequest "FULL_REQUEST" Single,
    FullRequestLength "FULL_REQUEST_LENGTH" Single,
    HighestSeverity "HIGHEST_SEVERITY" Single,
    InboundDataError "INBOUND_DATA_ERROR" Single,
    MatchedVar "MATCHED_VAR" Single,
    MatchedVarName "MATCHED_VAR_NAME" Single,
    MatchedVars "MATCHED_VARS" Collection,
    MatchedVarsNames "MATCHED_VARS_NAMES" Collection,
    ModsecBuild "MODSEC_BUILD" Single,
    MultipartFilename "MULTIPART_FILENAME" Collection,
    MultipartName "MULTIPART_NAME" Collection,
    MultipartPartHeaders "MULTIPART_PART_HEADERS" Collection,
    MultipartStrictError "MULTIPART_STRICT_ERROR" Single,
    MultipartUnmatchedBoundary "MULTIPART_UNMATCHED_BOUNDARY" Single,
    MultipartBoundaryQuoted "MULTIPART_BOUNDARY_QUOTED" Single,
    MultipartBoundaryWhitespace "MULTIPART_BOUNDARY_WHITESPACE" Single,
    MultipartDataAfter "MULTIPART_DATA_AFTER" Single,
    MultipartDataBefore "MULTIPART_DATA_BEFORE" Single,
    MultipartFileLimitExceeded "MULTIPART_FILE_LIMIT_EXCEEDED" Single,
    MultipartHeaderFolding "MULTIPART_HEADER_FOLDING" Single,
    MultipartInvalidHeaderFolding "MULTIPART_INVALID_HEADER_FOLDING" Single,
    MultipartInvalidPart "MULTIPART_INVALID_PART" Single,
    MultipartInvalidQuoting "MULTIPART_INVALID_QUOTING" Single,
    MultipartLfLine "MULTIPART_LF_LINE" Single,
    MultipartCrlfLfLines "MULTIPART_CRLF_LF_LINES" Single,
    MultipartMissingSemicolon "MULTIPART_MISSING_SEMICOLON" Single,
    OutboundDataError "OUTBOUND_DATA_ERROR" Single,
    PathInfo "PATH_INFO" Single,
    QueryString "QUERY_STRING" Single,
    RemoteAddr "REMOTE_ADDR" Single,
    RemoteHost "REMOTE_HOST" Single,
    RemotePort "REMOTE_PORT" Single,
    RemoteUser "REMOTE_USER" Single,
    ReqbodyError "REQBODY_ERROR" Single,
    ReqbodyErrorMsg "REQBODY_ERROR_MSG" Single,
    ReqbodyProcessor "REQBODY_PROCESSOR" Single,
    ReqbodyProcessorError "REQBODY_PROCESSOR_ERROR" Single,
    ReqbodyProcessorErrorMsg "REQBODY_PROCESSOR_ERROR_MSG" Single,
    RequestBasename "REQUEST_BASENAME" Single,
    RequestBody "REQUEST_BODY" Single,
    RequestBodyLength "REQUEST_BODY_LENGTH" Single,
    RequestCookies "REQUEST_COOKIES" Collection,
    RequestCookiesNames "REQUEST_COOKIES_NAMES" Collection,
    RequestFilename "REQUEST_FILENAME" Single,
    RequestHeaders "REQUEST_HEADERS" Collection,
    RequestHeadersNames "REQUEST_HEADERS_NAMES" Collection,
    RequestLine "REQUEST_LINE" Single,
    RequestMethod "REQUEST_METHOD" Single,
    RequestProtocol "REQUEST_PROTOCOL" Single,
    RequestUri "REQUEST_URI" Single,
    RequestUriRaw "REQUEST_URI_RAW" Single,
    ResponseBody "RESPONSE_BODY" Single,
    ResponseContentLength "RESPONSE_CONTENT_LENGTH" Single,
    ResponseContentType "RESPONSE_CONTENT_TYPE" Single,
    ResponseHeaders "RESPONSE_HEADERS" Collection,
    ResponseHeadersNames "RESPONSE_HEADERS_NAMES" Collection,
    ResponseProtocol "RESPONSE_PROTOCOL" Single,
    ResponseStatus "RESPONSE_STATUS" Single,
    Rule "RULE" Collection,
    ServerAddr "SERVER_ADDR" Single,
    ServerName "SERVER_NAME" Single,
    ServerPort "SERVER_PORT" Single,
    StatusLine "STATUS_LINE" Single,
    Time "TIME" Single,
    TimeDay "TIME_DAY" Single,
    TimeEpoch "TIME_EPOCH" Single,
    TimeHour "TIME_HOUR" Single,
    TimeMin "TIME_MIN" Single,
    TimeMon "TIME_MON" Single,
    TimeSec "TIME_SEC" Single,
    TimeWday "TIME_WDAY" Single,
    TimeYear "TIME_YEAR" Single,
    UniqueId "UNIQUE_ID" Single,
    UrlencodedError "URLENCODED_ERROR" Single,
    UserId "USERID" Single,
    SessionId "SESSIONID" Single,
    WebAppId "WEBAPPID" Single,
    Xml "XML" Collection,
    Ip "IP" Collection,
    Global "GLOBAL" Collection,
    Resource "RESOURCE" Collection,
    Session "SESSION" Collection,
    User "USER" Collection,
    Tx "TX" Collection,
}

/// Number of variables.
pub(crate) const VARIABLE_COUNT: usize = Variable::Tx as usize + 1;

impl Variable {
    /// The variable with this name, in any letter case.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let same = |(_, candidate, _): &&(Self, &str, Shape)| candidate.eq_ignore_ascii_case(name);
        if let Some((variable, ..)) = ALL.iter().find(same) {
            return Some(*variable);
        }
        // Older names.
        match () {
            () if name.eq_ignore_ascii_case("SESSION_ID") => Some(Self::SessionId),
            () if name.eq_ignore_ascii_case("MULTIPART_SEMICOLON_MISSING") => {
                Some(Self::MultipartMissingSemicolon)
            }
            () if name.eq_ignore_ascii_case("PARAMETERS") => Some(Self::Args),
            () if name.eq_ignore_ascii_case("REQUEST_BODY_ERROR") => Some(Self::ReqbodyError),
            () => None,
        }
    }

    /// The variable with this number.
    pub(crate) fn at(number: u8) -> Option<Self> {
        ALL.get(usize::from(number)).map(|(variable, ..)| *variable)
    }

    /// Name in upper case.
    pub(crate) fn name(self) -> &'static str {
        ALL.get(self as usize).map_or("", |(_, name, _)| name)
    }

    /// Source of its values.
    pub(crate) fn shape(self) -> Shape {
        ALL.get(self as usize).map_or(Shape::Single, |(.., shape)| *shape)
    }

    /// Returns true if its values change while the rules of a phase run.
    pub(crate) fn is_volatile(self) -> bool {
        matches!(
            self,
            Self::Tx
                | Self::MatchedVar
                | Self::MatchedVarName
                | Self::MatchedVars
                | Self::MatchedVarsNames
                | Self::Rule
                | Self::HighestSeverity
                | Self::Duration
                | Self::Env
        ) || self.is_persistent()
    }

    /// Returns true for a collection that outlives the request.
    pub(crate) fn is_persistent(self) -> bool {
        matches!(self, Self::Ip | Self::Global | Self::Resource | Self::Session | Self::User)
    }

    /// Bit of the variable in a set of variables.
    pub(crate) fn bit(self) -> u128 {
        1 << self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_found_by_its_name_and_has_a_bit() {
        const { assert!(VARIABLE_COUNT <= 128) };
        for (at, (variable, name, _)) in ALL.iter().enumerate() {
            assert_eq!(*variable as usize, at);
            assert_eq!(Variable::find(&name.to_lowercase()), Some(*variable));
        }
        assert_eq!(Variable::find("NOTHING"), None);
    }
}
