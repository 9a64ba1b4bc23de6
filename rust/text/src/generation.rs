//! `{% generation %}` ... `{% endgeneration %}`, a tag of transformers that marks training spans
//! and prints its body. A scoped block of the same length has the same output, and keeps every
//! position of the source for messages.

/// Replaces the tags outside comments and `raw` blocks.
pub fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (close, is_tag) = match rest.as_bytes().get(1) {
            Some(b'#') if !raw => ("#}", false),
            Some(b'%') => ("%}", true),
            _ => {
                out.push('{');
                rest = &rest[1..];
                continue;
            }
        };
        let end = rest.find(close).map_or(rest.len(), |i| i + 2);
        let tag = &rest[..end];
        rest = &rest[end..];
        let inner = |c: char| c.is_whitespace() || "{%}-+".contains(c);
        match tag.trim_matches(inner) {
            "raw" if is_tag => raw = true,
            "endraw" if is_tag => raw = false,
            "generation" if is_tag && !raw => {
                out.push_str(&tag.replace("generation", "with      "));
                continue;
            }
            "endgeneration" if is_tag && !raw => {
                out.push_str(&tag.replace("endgeneration", "endwith      "));
                continue;
            }
            _ => {}
        }
        // A tag may hold "%}" in a string: then what follows is read again as text, harmlessly.
        out.push_str(tag);
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tags_change_and_no_position_moves() {
        let source = "{%- generation -%} a {{ x }} {%endgeneration%}{# {% generation %} #}";
        let wanted = "{%- with       -%} a {{ x }} {%endwith      %}{# {% generation %} #}";
        assert_eq!(rewrite(source), wanted);
        let raw = "{% raw %}{% generation %}{% endraw %}";
        assert_eq!(rewrite(raw), raw);
    }
}
