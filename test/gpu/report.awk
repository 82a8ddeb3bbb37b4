# The results as JSON or as Markdown (form): from parts.tsv, rows.tsv and comparison.tsv, in this order.
function text(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); gsub(/[\001-\037]/, " ", s); return "\"" s "\"" }
function truth(s) { return s == "1" ? "true" : s == "0" ? "false" : "null" }
function cell(s) { gsub(/\|/, "\\|", s); return s }
function join(of, n,    i, s) { for (i = 1; i <= n; i++) s = s (i > 1 ? "," : "") "\n  " of[i]; return s }
FILENAME ~ /parts\.tsv$/ {
	part_json[++parts] = sprintf("{\"part\":%s,\"planned\":%d,\"seconds\":%d,\"state\":%s}", text($1), $2, $3, text($4))
	part_line[parts] = sprintf("| %s | %d | %d | %s |", $1, $2, $3, $4)
}
FILENAME ~ /rows\.tsv$/ {
	row_json[++rows] = sprintf("{\"suite\":%s,\"name\":%s,\"figure\":%s,\"unit\":%s,\"wanted\":%s,\"held\":%s}", text($1), text($2), text($3), text($4), text($5), truth($6))
	row_line[rows] = sprintf("| %s | %s | %s | %s | %s |", cell($1), cell($2), cell($3 " " $4), cell($5), $6 == "1" ? "yes" : $6 == "0" ? "**no**" : "")
}
FILENAME ~ /comparison\.tsv$/ {
	question_json[++questions] = sprintf("{\"key\":%s,\"question\":%s,\"gpu\":%s,\"simulator\":%s,\"withProfile\":%s,\"wrong\":%s,\"wrongWithProfile\":%s}", text($1), text($2), text($3), text($4), text($5), truth($6), truth($7))
	question_line[questions] = sprintf("| %s | %s | %s | %s | %s |", cell($2), cell($3), cell($4), cell($5), $6 == "1" ? ($7 == "1" ? "**wrong**" : "wrong, right with the profile") : "")
}
END {
	if (form == "json") {
		printf "{\"gpu\":%s,\"driver\":%s,\"memoryMiB\":%d,\"date\":%s,\"agentLoop\":%s,\n", text(gpu), text(driver), mib, text(date), loop ? "true" : "false"
		printf " \"parts\":[%s],\n \"questions\":[%s],\n \"rows\":[%s]}\n", join(part_json, parts), join(question_json, questions), join(row_json, rows)
		exit
	}
	printf "# %s, %s\n\nDriver %s, %d MiB. `make gpu-test`, %s the agent's loop.\n", date, gpu, driver, mib, loop ? "with" : "without"
	print "\n## What the simulated GPU had to assume\n\n| question | GPU | simulated | with the profile | |\n|---|---|---|---|---|"
	for (i = 1; i <= questions; i++) print question_line[i]
	print "\n## The limiter\n\n| suite | what | figure | wanted | held |\n|---|---|---|---|---|"
	for (i = 1; i <= rows; i++) print row_line[i]
	print "\n## Parts\n\n| part | planned, s | took, s | |\n|---|---|---|---|"
	for (i = 1; i <= parts; i++) print part_line[i]
}
