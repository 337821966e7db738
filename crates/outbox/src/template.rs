//! Templates of the exchange and the routing key: `{aggregate_type}.{event_type}`.
//!
//! A placeholder names a [`Field`], or any other column of the table by its own name; where a name is both, the field
//! wins. `{{` and `}}` are literal braces. A placeholder is replaced by the column's own text; its NULL is poison.

use std::fmt;
use std::str::FromStr;

use crate::Field;
use crate::nearest::nearest;

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Placeholder(String),
}

/// Why a text is not a template. Positions count characters from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A placeholder without an end.
    #[error("the placeholder at character {position} has no closing brace{}; write {{{{ for a literal brace", meant(.nearest))]
    Unclosed {
        /// Where its brace is.
        position: usize,
        /// The field that its text is nearest to.
        nearest: Option<Field>,
    },
    /// A closing brace that closes nothing.
    #[error("the closing brace at character {position} closes nothing; write }}}} for a literal brace")]
    Unopened {
        /// Where it is.
        position: usize,
    },
    /// A placeholder without a name.
    #[error(
        "the placeholder at character {position} is empty; name a field, such as {{event_type}}, or a column"
    )]
    Empty {
        /// Where its brace is.
        position: usize,
    },
    /// A name with white space around it, which no column has.
    #[error("the placeholder at character {position} has white space around its name{}", meant(.nearest))]
    Padded {
        /// Where its brace is.
        position: usize,
        /// The field that its text is nearest to.
        nearest: Option<Field>,
    },
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// The first fault, with its place.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = source;
        while let Some(at) = rest.find(['{', '}']) {
            let position = position(source, rest.get(at..).unwrap_or_default());
            let (before, after) = rest.split_at(at);
            literal.push_str(before);
            if let Some(doubled) = after.strip_prefix("{{") {
                literal.push('{');
                rest = doubled;
            } else if let Some(doubled) = after.strip_prefix("}}") {
                literal.push('}');
                rest = doubled;
            } else if let Some(open) = after.strip_prefix('{') {
                let (name, left) = placeholder(open, position)?;
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal)));
                }
                parts.push(Part::Placeholder(name.to_string()));
                rest = left;
            } else {
                return Err(TemplateError::Unopened { position });
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self {
            source: source.to_string(),
            parts,
        })
    }

    /// Names in the placeholders, in order, repeats included.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Literal(_) => None,
            Part::Placeholder(name) => Some(name.as_str()),
        })
    }

    /// Renders the template. `value` gives the text of the placeholder with the number (from 0, in order) and name.
    ///
    /// # Errors
    /// The first error of `value`.
    pub fn render<'v, E>(
        &self,
        mut value: impl FnMut(usize, &str) -> Result<&'v str, E>,
    ) -> Result<String, E> {
        let mut out = String::with_capacity(48);
        let mut number = 0;
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Placeholder(name) => {
                    out.push_str(value(number, name)?);
                    number += 1;
                }
            }
        }
        Ok(out)
    }

    /// Bytes of its literal text: no rendering is shorter.
    pub(crate) fn literal_bytes(&self) -> usize {
        let literal = |part: &Part| match part {
            Part::Literal(text) => text.len(),
            Part::Placeholder(_) => 0,
        };
        self.parts.iter().map(literal).sum()
    }

    /// Tells whether it renders as the empty text whatever the row holds.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(source: &str) -> Result<Self, TemplateError> {
        Self::parse(source)
    }
}

/// The template as it was typed.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// Splits what follows an opening brace into the name and what follows the closing one.
fn placeholder(open: &str, position: usize) -> Result<(&str, &str), TemplateError> {
    let end = open
        .find(['{', '}'])
        .filter(|end| open.as_bytes().get(*end) == Some(&b'}'));
    let Some((name, left)) = end.and_then(|end| Some((open.get(..end)?, open.get(end + 1..)?))) else {
        let word = open
            .split(|character: char| !character.is_alphanumeric() && character != '_')
            .next();
        return Err(TemplateError::Unclosed {
            position,
            nearest: word.and_then(nearest_field),
        });
    };
    if name.is_empty() {
        return Err(TemplateError::Empty { position });
    }
    if name.trim() != name {
        return Err(TemplateError::Padded {
            position,
            nearest: nearest_field(name.trim()),
        });
    }
    Ok((name, left))
}

/// Counts in characters where `rest`, an end of `source`, begins.
fn position(source: &str, rest: &str) -> usize {
    let before = source.len() - rest.len();
    source.get(..before).unwrap_or_default().chars().count() + 1
}

fn nearest_field(name: &str) -> Option<Field> {
    let name = nearest(name, Field::ALL.iter().map(|field| field.name()))?;
    Field::ALL.into_iter().find(|field| field.name() == name)
}

fn meant(nearest: &Option<Field>) -> String {
    nearest
        .map(|field| format!(", the nearest field is {{{field}}}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn render(template: &str) -> String {
        let template = Template::parse(template).expect("a template");
        let names: Vec<String> = template.placeholders().map(|name| format!("<{name}>")).collect();
        let rendered: Result<String, Infallible> = template.render(|number, name| {
            assert_eq!(names[number], format!("<{name}>"));
            Ok(&names[number])
        });
        let Ok(rendered) = rendered;
        rendered
    }

    fn error(template: &str) -> String {
        Template::parse(template).expect_err("not a template").to_string()
    }

    #[test]
    fn placeholders_are_replaced_and_doubled_braces_are_literal() {
        assert_eq!(
            render("{aggregate_type}.{event_type}"),
            "<aggregate_type>.<event_type>"
        );
        assert_eq!(render("a.{b}"), "a.<b>");
        assert_eq!(render("{{{b}}}"), "{<b>}");
        assert_eq!(render("{{b}}"), "{b}");
        assert_eq!(render("}}{{"), "}{");
        assert_eq!(render("{My Column ü}"), "<My Column ü>");
        assert_eq!(render(""), "");
    }

    #[test]
    fn a_fault_names_its_place_and_the_nearest_field() {
        let unclosed = error("é.{agregate_type.{event_type}");
        assert!(
            unclosed.contains("character 3") && unclosed.contains("{aggregate_type}"),
            "{unclosed}"
        );
        assert!(unclosed.contains("write {{ for"), "{unclosed}");
        assert!(error("order.{").contains("character 7"));
        assert!(
            error("{event_type}}").contains("character 13"),
            "{}",
            error("{event_type}}")
        );
        assert!(error("}").contains("write }} for"));
        assert!(error("a{}b").contains("character 2"));
        let padded = error("{ eventType }");
        assert!(
            padded.contains("white space") && padded.contains("{event_type}"),
            "{padded}"
        );
    }

    #[test]
    fn a_placeholder_without_a_value_fails_the_whole() {
        let template = Template::parse("{a}{b}").expect("a template");
        let rendered = template.render(|number, name| {
            if number == 0 {
                Ok("x")
            } else {
                Err(name.to_string())
            }
        });
        assert_eq!(rendered, Err("b".to_string()));
    }

    proptest! {
        #[test]
        fn any_text_with_its_braces_doubled_renders_as_itself(text in any::<String>()) {
            let doubled = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(render(&doubled), text);
        }

        #[test]
        fn literals_and_values_come_out_in_order(parts in proptest::collection::vec(("[a-z.{}]{0,6}", "[a-z_]{1,8}"), 0..6)) {
            let (mut template, mut expected) = (String::new(), String::new());
            for (literal, name) in parts {
                template += &format!("{}{{{name}}}", literal.replace('{', "{{").replace('}', "}}"));
                expected += &format!("{literal}<{name}>");
            }
            prop_assert_eq!(render(&template), expected);
        }

        #[test]
        fn no_text_panics(text in "[{}a_é ]{0,12}") {
            let parsed = Template::parse(&text);
            if let Ok(template) = parsed {
                prop_assert_eq!(template.to_string(), text);
            }
        }
    }
}
