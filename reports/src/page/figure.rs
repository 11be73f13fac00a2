//! A titled group of drawings with one legend and one table of numbers.

use super::chart::{data_table, legend};
use super::html::esc;
use super::svg::Look;

/// One drawing of a figure.
pub(crate) struct Drawing {
    /// Above it, if there are several.
    pub(crate) heading: Option<String>,
    /// What filters read.
    pub(crate) attrs: String,
    pub(crate) svg: String,
}

/// What explains the colours.
pub(crate) enum Legend {
    None,
    Arms(Vec<(Look, String)>),
    /// Parts of a bar: class and name of each.
    Parts(Vec<(String, &'static str)>),
}

pub(crate) struct Figure {
    pub(crate) title: String,
    /// What is drawn and how to read it, as plain text.
    pub(crate) text: String,
    /// The room it takes.
    pub(crate) width: Width,
    pub(crate) drawings: Vec<Drawing>,
    pub(crate) legend: Legend,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

#[derive(Clone, Copy)]
pub(crate) enum Width {
    /// One drawing, beside other figures.
    One,
    /// A row of its own.
    Row,
    /// A row of its own, for many small drawings.
    RowOfSmall,
}

impl Figure {
    /// `attrs` is what filters read of the figure as a whole.
    pub(crate) fn html(&self, attrs: &str) -> String {
        let class = match self.width {
            Width::One => "fig",
            Width::Row => "fig row",
            Width::RowOfSmall => "fig row of-small",
        };
        let mut out = format!(
            "<figure class=\"{class}\"{attrs}><figcaption><b>{}</b> {}</figcaption><div class=\"drawings\">",
            esc(&self.title),
            esc(&self.text)
        );
        for drawing in &self.drawings {
            out.push_str(&format!("<div class=\"drawing\"{}>", drawing.attrs));
            if let Some(heading) = &drawing.heading {
                out.push_str(&format!("<p class=\"facet\">{}</p>", esc(heading)));
            }
            out.push_str(&format!("{}</div>", drawing.svg));
        }
        out.push_str("</div>");
        match &self.legend {
            Legend::None => {}
            Legend::Arms(entries) => out.push_str(&legend(entries)),
            Legend::Parts(parts) => {
                let each = parts.iter().map(|(class, name)| {
                    let classes: String = class
                        .split(' ')
                        .map(|c| format!("<rect class=\"bar {c}\" width=\"14\" height=\"12\"/>"))
                        .collect();
                    format!(
                        "<li><svg class=\"swatch\" viewBox=\"0 0 14 12\" width=\"14\" height=\"12\" aria-hidden=\"true\">{classes}</svg><span>{name}</span></li>"
                    )
                });
                out.push_str(&format!(
                    "<ul class=\"legend\">{}</ul>",
                    each.collect::<String>()
                ));
            }
        }
        out.push_str(&data_table(&self.title, &self.head, &self.rows));
        out + "</figure>"
    }
}
