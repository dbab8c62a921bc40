// A GET by each of the two clients that the JDK has, with nothing set.
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

public class Get {
  public static void main(String[] words) throws Exception {
    URI uri = URI.create(words[0]);
    HttpRequest request = HttpRequest.newBuilder(uri).build();
    HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    System.out.println(answer.statusCode() + " " + answer.body());
    HttpURLConnection old = (HttpURLConnection) uri.toURL().openConnection();
    InputStream body = old.getResponseCode() < 400 ? old.getInputStream() : old.getErrorStream();
    System.out.println(old.getResponseCode() + " " + new String(body.readAllBytes()));
  }
}
