//! Counters of challenges: results, and causes of failures.

use tw_base::Counter;
use tw_core::metrics::{Metric, MetricKind};

use super::agents::AgentError;
use super::token::TokenError;

/// Results of requests, with the values of the label `result`.
const RESULTS: [(ChallengeResult, &str); 9] = [
    (ChallengeResult::Passed, "passed"),
    (ChallengeResult::ExemptAddress, "exempt_address"),
    (ChallengeResult::ExemptPath, "exempt_path"),
    (ChallengeResult::ExemptBot, "exempt_bot"),
    (ChallengeResult::ExemptAgent, "exempt_agent"),
    (ChallengeResult::Asked, "asked"),
    (ChallengeResult::Refused, "refused"),
    (ChallengeResult::Solved, "solved"),
    (ChallengeResult::Waited, "waited"),
];

/// Failures that there are, with the values of the labels `of` and `cause`.
const FAILURES: [(Failure, &str, &str); 16] = [
    (Failure::Answer(TokenError::Malformed), "answer", "malformed"),
    (Failure::Answer(TokenError::Signature), "answer", "signature"),
    (Failure::Answer(TokenError::Expired), "answer", "expired"),
    (Failure::Answer(TokenError::Wrong), "answer", "wrong"),
    (Failure::Wait(TokenError::Malformed), "wait", "malformed"),
    (Failure::Wait(TokenError::Signature), "wait", "signature"),
    (Failure::Wait(TokenError::Expired), "wait", "expired"),
    (Failure::Wait(TokenError::Early), "wait", "early"),
    (Failure::Cookie(TokenError::Malformed), "cookie", "malformed"),
    (Failure::Cookie(TokenError::Signature), "cookie", "signature"),
    (Failure::Cookie(TokenError::Expired), "cookie", "expired"),
    (Failure::Cookie(TokenError::Wrong), "cookie", "difficulty"),
    (Failure::Agent(AgentError::Malformed), "agent", "malformed"),
    (Failure::Agent(AgentError::UnknownKey), "agent", "unknown_key"),
    (Failure::Agent(AgentError::Expired), "agent", "expired"),
    (Failure::Agent(AgentError::Signature), "agent", "signature"),
];

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChallengeResult {
    /// Valid cookie.
    Passed,
    ExemptAddress,
    ExemptPath,
    ExemptBot,
    ExemptAgent,
    /// 403 with the page.
    Asked,
    /// 403 without the page.
    Refused,
    /// Correct answer.
    Solved,
    /// Token of a client that has waited.
    Waited,
}

/// Something that did not count, and its defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    Answer(TokenError),
    Wait(TokenError),
    Cookie(TokenError),
    Agent(AgentError),
}

/// Counters of all challenges. They live over reloads.
#[derive(Default)]
pub(super) struct Counts {
    results: [Counter; RESULTS.len()],
    failures: [Counter; FAILURES.len()],
}

impl Counts {
    pub(super) fn count(&self, result: ChallengeResult) {
        let counters = RESULTS.iter().zip(&self.results);
        if let Some((_, counter)) =
            counters.into_iter().find(|((challenge_result, _), _)| *challenge_result == result)
        {
            counter.add(1);
        }
    }

    /// Counts a failure. Returns its words, for logs.
    pub(super) fn count_failure(&self, failure: Failure) -> (&'static str, &'static str) {
        match FAILURES.iter().zip(&self.failures).find(|((known_failure, ..), _)| *known_failure == failure) {
            Some(((_, of, cause), counter)) => {
                counter.add(1);
                (of, cause)
            }
            None => ("", ""),
        }
    }
}

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "challenge_requests_total",
        kind: MetricKind::Counter,
        labels: &["result"],
        doc: "Requests by the result of their challenge: passed (valid cookie), exempt_address, exempt_path, exempt_bot, exempt_agent, asked (got the page), refused (403 without the page), solved, waited.",
        read: |scrape, out| {
            for counts in scrape.shared_objects::<Counts>() {
                for ((_, result), counter) in RESULTS.iter().zip(&counts.results) {
                    out.value(&[result], counter.value());
                }
            }
        },
    },
    Metric {
        name: "challenge_failures_total",
        kind: MetricKind::Counter,
        labels: &["of", "cause"],
        doc: "Answers, waits, cookies and signatures of agents that did not count, by cause. The cause signature is also that of a client whose address, host or User-Agent has changed.",
        read: |scrape, out| {
            for counts in scrape.shared_objects::<Counts>() {
                for ((_, of, cause), counter) in FAILURES.iter().zip(&counts.failures) {
                    out.value(&[of, cause], counter.value());
                }
            }
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_failures_are_counted_apart() {
        let counts = Counts::default();
        for (result, _) in RESULTS {
            counts.count(result);
        }
        for (failure, of, cause) in FAILURES {
            assert_eq!(counts.count_failure(failure), (of, cause));
        }
        let all = counts.results.iter().chain(&counts.failures);
        assert!(all.into_iter().all(|counter| counter.value() == 1));
    }
}
