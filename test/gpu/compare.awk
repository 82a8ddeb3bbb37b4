# Reads questions.tsv; the answers are in files of "dir". Prints key, question, the GPU's answer, the simulator's, that with the
# profile, and whether the second and the third are wrong (1, 0, or - where nothing is compared).
function read_answers(name, into,    line, at) {
	while ((getline line < (dir "/" name)) > 0) {
		at = index(line, "=")
		into[substr(line, 1, at - 1)] = substr(line, at + 1)
	}
}
function number(text) { return text ~ /^-?[0-9]+(\.[0-9]+)?$/ }
function size(n) { return n < 0 ? -n : n }
function wrong(rule, a, b,    by, large, small) {
	if (rule == "-" || a == "" || a == "unknown" || a ~ /^not tried/) return "-"
	if (a == b) return 0
	if (rule == "=" || !number(a) || !number(b)) return 1
	a += 0
	b += 0
	by = substr(rule, 2) + 0
	large = size(a) > size(b) ? size(a) : size(b)
	small = size(a) > size(b) ? size(b) : size(a)
	if (size(a - b) <= 1) return 0
	if (rule ~ /^~/) return size(a - b) > large * by / 100
	return a * b <= 0 || large > small * by
}
BEGIN { OFS = "\t"; read_answers("real", real); read_answers("as-it-is", simulated); read_answers("profile", profile) }
!/^#/ { print $1, $4, real[$1], simulated[$1], profile[$1], wrong($2, real[$1], simulated[$1]), wrong($2, real[$1], profile[$1]) }
