//! Lines with markers and intervals over two axes.

use super::html::esc;
use super::svg::{Anchor, Canvas, Look, Scale, Step, tick, ticks};

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

/// One arm's line.
pub(crate) struct Series {
    /// The arm, as filters know it.
    pub(crate) arm: String,
    pub(crate) look: Look,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) interval: Option<(f64, f64)>,
    /// What the marker says when pointed at.
    pub(crate) says: String,
    /// Beside the marker, if anything.
    pub(crate) label: Option<String>,
}

/// An axis and what stands beside it.
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) step: Step,
    /// Places with a label; `None` for round numbers from 0.
    pub(crate) places: Option<Vec<f64>>,
}

/// A line that is no arm's.
pub(crate) enum Guide {
    None,
    /// Through all points with equal coordinates.
    Diagonal,
    /// A line through given points.
    Through(Vec<(f64, f64)>),
}

/// One drawing.
pub(crate) struct LineChart {
    pub(crate) title: String,
    pub(crate) desc: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) guide: Guide,
    pub(crate) series: Vec<Series>,
}

impl LineChart {
    pub(crate) fn svg(&self, id: &str) -> String {
        let mut canvas = Canvas::new(WIDTH, HEIGHT);
        let points = || self.series.iter().flat_map(|s| &s.points);
        let highest = points().map(|p| p.interval.map_or(p.y, |i| i.1.max(p.y)));
        let (x_places, x) = scale(&self.x, points().map(|p| p.x), (LEFT, WIDTH - RIGHT));
        let (y_places, y) = scale(&self.y, highest, (HEIGHT - BOTTOM, TOP));
        self.axes(&mut canvas, (&x_places, &x), (&y_places, &y));
        match &self.guide {
            Guide::None => {}
            Guide::Diagonal => {
                let (low, high) = (x.low.max(y.low), x.high.min(y.high));
                canvas.line(
                    (x.at(low), y.at(low)),
                    (x.at(high), y.at(high)),
                    "guide dashed",
                );
            }
            Guide::Through(points) => {
                for pair in points.windows(2) {
                    let [from, to] = [0, 1].map(|i: usize| (x.at(pair[i].0), y.at(pair[i].1)));
                    canvas.line(from, to, "guide wide");
                }
            }
        }
        for (idx, series) in self.series.iter().enumerate() {
            // Side by side, so that intervals at one place do not hide each other.
            let aside = match points().any(|p| p.interval.is_some()) {
                true => (idx as f64 - (self.series.len() - 1) as f64 / 2.0) * 2.4,
                false => 0.0,
            };
            series.draw(&mut canvas, &x, &y, aside);
        }
        canvas.finish(id, &self.title, &self.desc)
    }

    fn axes(&self, canvas: &mut Canvas, x: (&[f64], &Scale), y: (&[f64], &Scale)) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for place in y.0 {
            let at = y.1.at(*place);
            canvas.line((LEFT, at), (right, at), "grid");
            canvas.text(
                (LEFT - 6.0, at + 4.0),
                Anchor::End,
                "tick",
                &tick(*place, y.0),
            );
        }
        canvas.line((LEFT, bottom), (right, bottom), "axis");
        for place in x.0 {
            let at = x.1.at(*place);
            canvas.line((at, bottom), (at, bottom + 4.0), "axis");
            canvas.text(
                (at, bottom + 17.0),
                Anchor::Middle,
                "tick",
                &tick(*place, x.0),
            );
        }
        let middle = (LEFT + right) / 2.0;
        canvas.text(
            (middle, HEIGHT - 7.0),
            Anchor::Middle,
            "label",
            self.x.label,
        );
        canvas.upright((12.0, (TOP + bottom) / 2.0), "label", self.y.label);
    }

    /// One entry an arm, for a legend.
    pub(crate) fn legend(&self) -> Vec<(Look, String)> {
        let each = self.series.iter();
        each.map(|s| (s.look, s.arm.clone())).collect()
    }
}

impl Series {
    fn draw(&self, canvas: &mut Canvas, x: &Scale, y: &Scale, aside: f64) {
        canvas.open(self.look, Some(&self.arm));
        let at = |p: &Point| (x.at(p.x) + aside, y.at(p.y));
        let points: Vec<(f64, f64)> = self.points.iter().map(at).collect();
        for (point, (px, _)) in self.points.iter().zip(&points) {
            if let Some((low, high)) = point.interval {
                canvas.line((*px, y.at(low.max(y.low))), (*px, y.at(high)), "whisker");
            }
        }
        canvas.polyline(&points, self.look);
        for (point, at) in self.points.iter().zip(&points) {
            canvas.marker(*at, self.look, &point.says);
            if let Some(label) = &point.label {
                canvas.text((at.0, at.1 - 8.0), Anchor::Middle, "mark", label);
            }
        }
        canvas.close();
    }
}

/// Labelled places and the scale that holds them and all values.
fn scale(axis: &Axis, values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> (Vec<f64>, Scale) {
    let highest = values.fold(0.0, f64::max);
    let places = axis
        .places
        .clone()
        .unwrap_or_else(|| ticks(0.0, highest, 5));
    let low = places.first().copied().unwrap_or(0.0);
    let high = places.last().map_or(highest, |last| last.max(highest));
    // Places of a given axis stand a little inside.
    let inset = match axis.places {
        Some(_) => 12.0 * (pixels.1 - pixels.0).signum(),
        None => 0.0,
    };
    let scale = Scale {
        low,
        high,
        pixels: (pixels.0 + inset, pixels.1 - inset),
        step: axis.step,
    };
    (places, scale)
}

/// The legend beside drawings.
pub(crate) fn legend(entries: &[(Look, String)]) -> String {
    let each = entries.iter().map(|(look, arm)| {
        let name = super::html::arm(arm);
        let attr = super::html::attr("data-method", arm);
        format!("<li{attr}>{}<span>{name}</span></li>", look.swatch())
    });
    format!("<ul class=\"legend\">{}</ul>", each.collect::<String>())
}

/// The numbers of a drawing as a table: `head`, then rows whose first entry names them.
pub(crate) fn data_table(caption: &str, head: &[String], rows: &[Vec<String>]) -> String {
    let mut out = format!(
        "<details class=\"data\"><summary>Numbers</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table><caption>{0}</caption><thead><tr>",
        esc(caption)
    );
    for name in head {
        out.push_str(&format!("<th scope=\"col\">{}</th>", esc(name)));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (idx, entry) in row.iter().enumerate() {
            match idx {
                0 => {
                    let name = super::html::arm(entry);
                    out.push_str(&format!("<th scope=\"row\">{name}</th>"));
                }
                _ => out.push_str(&format!("<td>{}</td>", esc(entry))),
            }
        }
        out.push_str("</tr>");
    }
    out + "</tbody></table></div></details>"
}
