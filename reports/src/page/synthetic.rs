//! Arms whose acceptance was given instead of measured, in colours that nothing measured has.

use super::html::esc;
use crate::record::Record;
use crate::synthetic::synthetic_sheet;

/// The section; empty if there are none.
pub(crate) fn html(records: &[Record]) -> String {
    let Some(sheet) = synthetic_sheet(records) else {
        return String::new();
    };
    let line = |cells: &[String], tag: &str| {
        let cells = cells.iter().map(|c| format!("<{tag}>{}</{tag}>", esc(c)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    let rows: String = sheet.rows.iter().map(|row| line(row, "td")).collect();
    let notes = sheet
        .notes
        .iter()
        .map(|n| format!("<p class=\"small\">{}</p>", esc(n)));
    format!(
        "{}<div class=\"scroll\"><table><caption class=\"vh\">{}</caption><thead>{}</thead><tbody>{rows}</tbody></table></div>",
        notes.collect::<String>(),
        esc(&sheet.title),
        line(&sheet.header, "th scope=\"col\"").replace("</th scope=\"col\">", "</th>")
    )
}
