//! Recorded answers of nginx in the file of a case: read again, they stand for a server that is not there.

use crate::case::LOGGED;
use crate::case_file::{Line, push};
use crate::failure::Failure;
use crate::response::{Fate, Reading, Response};
use crate::server::{Answer, Observation};

/// Ends of connections, by the words of a file.
const FATES: &[(&str, Fate)] =
    &[("kept", Fate::Kept), ("closed", Fate::Closed), ("reset", Fate::Reset), ("silent", Fate::Silent)];

/// Framings, as readers name them. Those of a file have to be among them.
const FRAMINGS: &[&str] = &[
    "",
    "none",
    "length",
    "cut",
    "chunked",
    "invalid chunk",
    "until close",
    "no head",
    "superfluous",
    "stream",
];

/// Text of an observation.
pub(crate) fn write(observation: &Observation) -> String {
    let mut text = String::new();
    if let Some(refusal) = &observation.refusal {
        push(&mut text, "refusal", refusal.as_bytes());
    }
    for answer in &observation.answers {
        let fate =
            FATES.iter().find(|(_, fate)| *fate == answer.reading.fate).map_or("silent", |(word, _)| word);
        push(&mut text, "answer", fate.as_bytes());
        for response in &answer.reading.responses {
            push(&mut text, "status", response.status_line.as_bytes());
            push(&mut text, "framing", response.framing.as_bytes());
            for (name, value) in &response.fields {
                push(&mut text, "header", format!("{name}: {value}").as_bytes());
            }
            push(&mut text, "body", &response.body);
        }
        answer.received.iter().for_each(|request| push(&mut text, "received", request.as_bytes()));
        answer.log.iter().for_each(|line| push(&mut text, "log", short(line).as_bytes()));
    }
    text
}

/// Reads the observation of a file. The body of a response is text: cases with other bodies are not recorded.
///
/// # Errors
/// Text that is no observation.
pub(crate) fn read(lines: &[Line<'_>]) -> Result<Observation, Failure> {
    let mut observation = Observation::default();
    for (word, value) in lines {
        read_line(&mut observation, word, value).ok_or_else(|| format!("misplaced: {word} {value}"))?;
    }
    Ok(observation)
}

fn read_line(observation: &mut Observation, word: &str, value: &str) -> Option<()> {
    match word {
        "refusal" => observation.refusal = Some(value.to_owned()),
        "answer" => {
            let fate = FATES.iter().find(|(word, _)| *word == value).map(|(_, fate)| *fate)?;
            let reading = Reading { responses: Vec::new(), fate };
            observation.answers.push(Answer { reading, ..Answer::default() });
        }
        "received" => observation.answers.last_mut()?.received.push(value.to_owned()),
        "log" => observation.answers.last_mut()?.log.push(long(value)),
        "status" => {
            let response = Response { status_line: value.to_owned(), ..Response::default() };
            observation.answers.last_mut()?.reading.responses.push(response);
        }
        "framing" | "header" | "body" => {
            let response = observation.answers.last_mut()?.reading.responses.last_mut()?;
            match word {
                "framing" => response.framing = FRAMINGS.iter().find(|candidate| **candidate == value)?,
                "header" => {
                    let (name, value) = value.split_once(": ")?;
                    response.fields.push((name.to_owned(), value.to_owned()));
                }
                _ => response.body = value.as_bytes().to_vec(),
            }
        }
        _ => {}
    }
    Some(())
}

/// Line of the access log without variables that are empty.
fn short(line: &str) -> String {
    let items = items(line).filter(|item| !item.ends_with("=["));
    items.map(|item| format!("{item}]")).collect::<Vec<_>>().join(" ")
}

/// Variables of a line, without the bracket at the end of each.
fn items(line: &str) -> impl Iterator<Item = &str> {
    line.strip_suffix(']').unwrap_or(line).split("] ")
}

/// The line again: variables that it lacks are empty.
fn long(line: &str) -> String {
    let items: Vec<&str> = items(line).collect();
    let value = |name: &str| {
        let of_name = items.iter().find_map(|item| item.strip_prefix(name)?.strip_prefix("=["));
        of_name.unwrap_or_default()
    };
    LOGGED.iter().map(|name| format!("{name}=[{}]", value(name))).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case_file;
    use crate::compare::compare;

    fn observation() -> Observation {
        let response = Response {
            status_line: "HTTP/1.1 200 OK".to_owned(),
            fields: vec![("x".to_owned(), "a: b".to_owned()), ("y".to_owned(), String::new())],
            body: b"a\r\n\"b\"".to_vec(),
            framing: "length",
        };
        let reading = Reading { responses: vec![response.clone(), response], fate: Fate::Closed };
        let log: Vec<String> =
            vec![LOGGED.iter().map(|name| format!("{name}=[]")).collect::<Vec<_>>().join(" ")];
        let received = vec!["GET / HTTP/1.0\r\n\r\n".to_owned()];
        Observation { answers: vec![Answer { reading, received, log }], ..Observation::default() }
    }

    #[test]
    fn observations_survive_their_files() {
        let observed = observation();
        let text = write(&observed);
        let again = read(&case_file::lines(&text).unwrap()).unwrap();
        assert!(compare(&observed, &again).is_empty(), "{text}");
        assert_eq!(again.answers[0].reading, observed.answers[0].reading);
        assert_eq!(again.answers[0].log, observed.answers[0].log);
        let refused = Observation { refusal: Some("unknown".to_owned()), ..Observation::default() };
        let again = read(&case_file::lines(&write(&refused)).unwrap()).unwrap();
        assert_eq!(again.refusal, refused.refusal);
    }

    #[test]
    fn text_that_is_no_observation_is_refused() {
        for text in ["answer gone", "status 200", "answer kept\nbody x", "answer kept\nstatus a\nframing odd"]
        {
            assert!(read(&case_file::lines(text).unwrap()).is_err(), "{text}");
        }
    }

    #[test]
    fn empty_variables_are_left_out_of_the_file() {
        assert_eq!(short("a=[1] b=[] c=[x y]"), "a=[1] c=[x y]");
        assert_eq!(short("host=[[::1]] b=[[::1]]"), "host=[[::1]] b=[[::1]]");
        assert!(long("host=[[::1]] uri=[/]").contains("host=[[::1]]"));
        assert!(long("status=[200] uri=[/a b]").contains("status=[200]"));
        assert!(long("uri=[/a b]").contains("uri=[/a b]") && long("uri=[/]").contains("status=[]"));
    }
}
