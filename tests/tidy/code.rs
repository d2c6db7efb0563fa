//! As much of the syntax of Rust as the rules need.

/// A function with a body.
pub(crate) struct Function {
    pub(crate) name: String,
    /// The number of its first line.
    pub(crate) line: usize,
    /// How many lines it has.
    pub(crate) lines: usize,
}

/// The functions in code that [`code_only`] made. As rustfmt left it: the closing brace stands
/// below the first letter of the line on which the function begins.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let end = lines[index..].iter().position(|end| {
            end.len() > indent && end[..indent].trim().is_empty() && end[indent..].starts_with('}')
        });
        let has_body = lines[index..]
            .iter()
            .find(|line| line.contains('{') || line.trim_end().ends_with(';'))
            .is_some_and(|line| line.contains('{'));
        if let (Some(end), true) = (end, has_body && !line.contains('}')) {
            found.push(Function { name: name.to_owned(), line: index + 1, lines: end + 1 });
        }
    }
    found
}

/// The name of the function that begins in this line.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let qualifiers = ["pub", "const", "async", "extern", "crate", "super"];
    let is_item = before
        .split(|c: char| !c.is_alphanumeric())
        .all(|word| word.is_empty() || qualifiers.contains(&word));
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_item && !name.is_empty()).then_some(name)
}

/// Whether `word` stands in `line` with nothing of an identifier on either side.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |found: Option<char>| found.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !is_part(before) && !is_part(after)
    })
}

/// Rust text with its comments and literals replaced by blanks; lines stay where they are.
pub(crate) fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let follows_word = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let length = match blank_length(rest, follows_word) {
            0 => {
                code.push(first);
                first.len_utf8()
            }
            length => {
                let blanks = rest[..length].chars().map(|c| if c == '\n' { c } else { ' ' });
                code.extend(blanks);
                length
            }
        };
        rest = &rest[length..];
    }
    code
}

/// The length of the comment or literal that `rest` begins with; 0 if it begins with code.
fn blank_length(rest: &str, follows_word: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    let prefix = if follows_word {
        0
    } else {
        rest.bytes().take_while(|byte| b"bcr".contains(byte)).count()
    };
    let literal = &rest[prefix..];
    let hashes = literal.bytes().take_while(|&byte| byte == b'#').count();
    if rest[..prefix].ends_with('r') && literal[hashes..].starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let body = &literal[hashes + 1..];
        let body_length = body.find(&end).map_or(body.len(), |at| at + end.len());
        return prefix + hashes + 1 + body_length;
    }
    match literal.chars().next() {
        Some('"') => prefix + quoted_length(literal, '"'),
        // A quote that closes after one character, or opens an escape: a literal, no lifetime.
        Some('\'') if literal[1..].starts_with('\\') || literal.chars().nth(2) == Some('\'') => {
            prefix + quoted_length(literal, '\'')
        }
        _ => 0,
    }
}

fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length of a literal from its opening quote to its closing one.
fn quoted_length(literal: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in literal.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    literal.len()
}
