//! `sandbox why`: a denial that happened, the rule behind it, and what would turn it.

use super::Failure;
use crate::session::state::{RUN, Registry};
use crate::session::{SessionId, host};
use crate::sinks::Output;
use crate::sinks::denial::grant_of;
use crate::sinks::escape::printable;
use crate::sinks::kept;
use sandbox_common::event::Reason;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `sandbox why`.
#[derive(Debug, clap::Args)]
pub struct WhyArgs {
    /// Which denial, counted from the last one
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    event: u32,
    /// The last one: the same as 1
    #[arg(long, conflicts_with = "event")]
    last: bool,
    /// Of this session, running or not; without it of the one that was denied something last
    #[arg(long, value_name = "ID", conflicts_with = "events")]
    session: Option<SessionId>,
    /// Out of a file that `sandbox run --events` wrote
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Print the event as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `sandbox why`.
pub fn execute(args: &WhyArgs) -> ExitCode {
    match find(args) {
        Ok(event) => {
            if args.json {
                anstream::println!("{event}");
            } else {
                for line in lines(&event) {
                    anstream::println!("{line}");
                }
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let mut output = Output::stderr(args.json, false);
            Failure { code: 1, ..failure }.tell(&mut output)
        }
    }
}

fn find(args: &WhyArgs) -> Result<Value, Failure> {
    let number = if args.last { 1 } else { args.event };
    let (text, of) = if let Some(file) = &args.events {
        let text = std::fs::read_to_string(file)
            .map_err(|error| Failure::new(format!("cannot read {}: {error}", file.display())))?;
        (text, file.display().to_string())
    } else {
        host::check().map_err(|error| Failure::new(&error).help(error.help()))?;
        // Made where it is missing, so that there is something to read.
        Registry::open(RUN).map_err(Failure::new)?;
        let kept = kept::read(Path::new(RUN), args.session.as_ref())
            .map_err(|error| Failure::new(format!("cannot read {RUN}: {error}")))?;
        let (id, text) = kept.ok_or_else(|| Failure::new("nothing was denied lately"))?;
        (text, format!("session {id}"))
    };
    denial(&text, number).ok_or_else(|| Failure::new(format!("{of} has no {number}. denial")))
}

/// The denial that comes so many from the end.
fn denial(text: &str, number: u32) -> Option<Value> {
    let events = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut denials = events.filter(|event| event["type"] == "denial");
    denials.nth(usize::try_from(number).ok()?.checked_sub(1)?)
}

/// A denial for people.
fn lines(event: &Value) -> Vec<String> {
    let text = |value: &Value| printable(value.as_str().unwrap_or("?").as_bytes());
    let mut lines = vec![
        text(&event["message"]),
        format!("  when: {}, in session {}", text(&event["time"]), text(&event["session"])),
    ];
    let rule = &event["rule"];
    if let Some(key) = rule["key"].as_str() {
        lines.push(format!(
            "  rule: {} \"{}\", line {} of {}, layer {}",
            printable(key.as_bytes()),
            text(&rule["text"]),
            rule["line"],
            text(&rule["file"]),
            text(&rule["layer"])
        ));
    }
    let hint = &event["hint"];
    lines.push(match rule["layer"].as_str() {
        _ if event["reason"] == Reason::Asked.name() => {
            format!("  to let it run: {}", grant_of(&text(&event["session"]), &text(&rule["text"])))
        }
        Some("managed") => "  only the administrator can allow it".to_owned(),
        Some("sandbox") => "  no policy can allow it".to_owned(),
        Some("project") => {
            "  the project's file closes it, until it is changed or trusted".to_owned()
        }
        _ if hint.is_object() => {
            format!("  to allow it: add \"{}\" to {}", text(&hint["add"]), text(&hint["key"]))
        }
        Some(_) if event["reason"] == "rule" => {
            "  to allow it: take the rule away, or grant this place for a while (sandbox grant)"
                .to_owned()
        }
        _ => "  no rule would allow it".to_owned(),
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENIED: &str = r#"{"type":"denial","time":"T","session":"0123abcd","reason":"rule","message":"denied \u001b","rule":{"key":"files.read.deny","text":"~/.ssh/**","line":22,"file":"preset:credentials","layer":"preset"},"hint":{"key":"files.read.allow","add":"/h/.ssh/x"}}"#;

    #[test]
    fn denials_are_counted_from_the_end() {
        let text = format!(
            "{DENIED}\nnot json\n{{\"type\":\"session\"}}\n{}\n",
            DENIED.replace("22", "23")
        );
        assert_eq!(denial(&text, 1).unwrap()["rule"]["line"], 23);
        assert_eq!(denial(&text, 2).unwrap()["rule"]["line"], 22);
        assert!(denial(&text, 3).is_none() && denial(&text, 0).is_none());
    }

    #[test]
    fn a_denial_says_what_would_turn_it() {
        let event: Value = serde_json::from_str(DENIED).unwrap();
        let said = lines(&event);
        assert_eq!(said[0], "denied \\u{1b}");
        assert!(said[2].contains("line 22 of preset:credentials, layer preset"), "{said:?}");
        assert_eq!(said[3], "  to allow it: add \"/h/.ssh/x\" to files.read.allow");
        for (layer, part) in
            [("managed", "administrator"), ("sandbox", "no policy"), ("project", "trusted")]
        {
            let mut event = event.clone();
            event["rule"]["layer"] = layer.into();
            assert!(lines(&event)[3].contains(part), "{layer}");
        }
        let mut event = event.clone();
        event["hint"] = Value::Null;
        assert!(lines(&event)[3].contains("sandbox grant"));
        event["rule"] = Value::Null;
        event["reason"] = "too_deep".into();
        assert_eq!(lines(&event)[2], "  no rule would allow it");
    }
}
