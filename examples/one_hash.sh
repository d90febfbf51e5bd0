#!/usr/bin/env bash
# Draws one_hash.svg: 32_one_hash in six layouts, each with the hash that this run printed.
#     examples/one_hash.sh build/one_hash >examples/one_hash.svg
set -euo pipefail
program=${1:?give the compiled 32_one_hash: examples/one_hash.sh build/one_hash >one_hash.svg}

# One layout a line: name | options | rows, by their shares of the batch | columns, by name | kind of the picture
layouts='1 rank|--ranks 1|8|all|
3 uneven ranks|--ranks 3 --threads 2|2 3 3|all|
ZeRO 3|--ranks 4 --zero 3|2 2 2 2|all|shards
tensor parallel|--ranks 2 --tp 2 --sequence-parallel|8|left right|
pipeline|--ranks 4 --pp 4|8|1 2 3 4|stages
all at once|--ranks 8 --tp 2 --pp 2 --zero 1|4 4|1l 1r 2l 2r|stages'

panel_width=150 left=30 top=128 # of the panels
rooms=126 high=104              # pixels for the ranks of a panel

text() { printf '<text x="%s" y="%s" class="%s">%s</text>\n' "$@"; }
box() { printf '<rect x="%s" y="%s" width="%s" height="%s" rx="%s" class="%s"/>\n' "$@"; }

# The ranks of a layout as a grid: a row is a replica and its share of the batch, a column a part of the model.
ranks() {
    local x=$1 y=$2 rows=($3) columns=($4) kind=$5 row column width height rank=0 at i
    width=$(((rooms - 6 * (${#columns[@]} - 1)) / ${#columns[@]}))
    for row in "${rows[@]}"; do
        at=$x
        height=$(((high - 6 * (${#rows[@]} - 1)) * row / 8))
        for column in "${!columns[@]}"; do
            box $at "$y" $width $height 5 "part$((4 / ${#columns[@]} * column))"
            text $((at + width / 2)) $((y + height / 2 + 5)) "rank middle" "$rank"
            if [ "$kind" = shards ]; then # a rank keeps a quarter of the state
                for i in 0 1 2 3; do box $((at + 10 + 12 * i)) $((y + height / 2 - 4)) 9 8 2 "$([ $i = $rank ] && echo own || echo other)"; done
            fi
            rank=$((rank + 1)) at=$((at + width + 6))
        done
        y=$((y + height + 6))
    done
}

cat <<'SVG'
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 420" role="img" aria-label="One recipe, six layouts, one SHA-256">
<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #334155 }
.card { fill: #f8fafc; stroke: #cbd5e1 } .panel { fill: #ffffff; stroke: #e2e8f0 } .recipe { fill: #1e3a8a }
.title { font-size: 17px; font-weight: 600; fill: #ffffff } .light { fill: #dbeafe } .name { font-weight: 600; fill: #0f172a }
.option { font: 10.5px ui-monospace, Menlo, Consolas, monospace; fill: #64748b }
.small { font-size: 11.5px; fill: #64748b }
.hash { font: 600 12.5px ui-monospace, Menlo, Consolas, monospace; fill: #065f46 } .pill { fill: #d1fae5; stroke: #6ee7b7 }
.rank { font-weight: 600; fill: #ffffff } .middle { text-anchor: middle } .line { stroke: #94a3b8; fill: none; stroke-width: 1.5 }
.part0 { fill: #2563eb } .part1 { fill: #0d9488 } .part2 { fill: #b45309 } .part3 { fill: #7c3aed }
.own { fill: #ffffff } .other { fill: #ffffff; opacity: 0.25 }
@media (prefers-color-scheme: dark) {
text { fill: #cbd5e1 } .card { fill: #0f172a; stroke: #334155 } .panel { fill: #1e293b; stroke: #334155 } .name { fill: #f1f5f9 }
.option, .small { fill: #94a3b8 } .pill { fill: #064e3b; stroke: #047857 } .hash { fill: #a7f3d0 } .title { fill: #ffffff } .light { fill: #dbeafe } .rank { fill: #ffffff } }
</style>
SVG
box 1 1 998 418 14 card
box 250 20 500 62 10 recipe
text 500 46 "title middle" "One recipe decides every bit"
text 500 68 "light middle" "a GPT of 2 layers, its data, seed, batch, optimizer, 60 steps"
printf '<path class="line" d="M500 82V104M105 116V104H895V116"/>\n'
number=0 all=''
while IFS='|' read -r name options rows columns kind; do
    # shellcheck disable=SC2086
    hash=$("$program" $options --quiet | sed -n 's/^sha256 *//p')
    [ ${#hash} = 64 ] || { echo "one_hash.sh: no hash from $program $options" >&2; exit 1; }
    x=$((left + number * (panel_width + 8)))
    [ $number = 0 ] || [ $number = 5 ] || printf '<path class="line" d="M%s 104V116"/>\n' $((x + panel_width / 2))
    box $x $((top - 12)) $panel_width 240 10 panel
    text $((x + panel_width / 2)) $((top + 12)) "name middle" "$name"
    ranks $((x + (panel_width - rooms) / 2)) $((top + 26)) "$rows" "$columns" "$kind"
    text $((x + panel_width / 2)) $((top + 156)) "option middle" "$(cut -d' ' -f1-4 <<<"$options")"
    text $((x + panel_width / 2)) $((top + 171)) "option middle" "$(cut -s -d' ' -f5- <<<"$options")"
    box $((x + 9)) $((top + 184)) $((panel_width - 18)) 28 14 pill
    text $((x + panel_width / 2)) $((top + 202)) "hash middle" "${hash:0:16}"
    number=$((number + 1)) all+="$hash"$'\n'
done <<<"$layouts"
different=$(sort -u <<<"${all%$'\n'}" | wc -l)
[ "$different" = 1 ] || { echo "one_hash.sh: $different hashes from six layouts" >&2; exit 1; }
text 500 388 "name middle" "six layouts, one SHA-256 of weights and optimizer state (its first 16 digits are shown)"
text 500 407 "small middle" "A numbered box is a rank. A row is a share of the batch, a colour a part of the model, a white square the shard of the state that a rank keeps."
echo '</svg>'
