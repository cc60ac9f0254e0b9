{{- define "gpuwho.selector" -}}
{app.kubernetes.io/name: gpuwho, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}
{{- define "gpuwho.name" -}}
{{ if contains "gpuwho" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ .Release.Name | trunc 45 | trimSuffix "-" }}-gpuwho{{ end }}
{{- end }}
{{- define "gpuwho.sockets" -}}
{{ $paths := list }}{{ range .Values.runtimeSockets }}{{ $paths = append $paths (printf "/host%s" .) }}{{ end }}{{ toJson $paths }}
{{- end }}
{{- define "gpuwho.socketFolders" -}}
{{ $folders := list }}{{ range .Values.runtimeSockets }}{{ $folders = append $folders (dir .) }}{{ end }}{{ toJson (uniq $folders) }}
{{- end }}
